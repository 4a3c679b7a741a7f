"""Scheme `powersgd`: gradients of matrices travel as two factors of low rank.

Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2. Of an n x m matrix a rank hands over r (n + m)
values in two all-reduces; kernels count as matrices of n = shape[0] rows. Parameters for which that is not
less than their size travel uncompressed, together in a third all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme, State, to_device
from disttrain.parallel.gradient_communication.counted_group import CountedGroup, own_group
from disttrain.parallel.gradient_communication.error_feedback import ErrorFeedback, keep_if_finite
from disttrain.runtime.process_group import World

_FACTOR = "q."


def is_compressed(shape: torch.Size, rank: int) -> bool:
    """Whether factors of `rank` are smaller than a parameter of `shape`."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return rank * (rows + columns) < rows * columns


def average_powersgd(
    matrices: Mapping[str, Tensor],
    rest: list[Tensor],
    group: CountedGroup,
    factors: dict[str, Tensor],
    errors: Mapping[str, Tensor],
) -> None:
    """Overwrite each of `matrices` (two dimensions, float32) with an average over ranks of low rank, and each
    of `rest` with the mean.

    `factors` holds the right factor Q of each matrix, columns x rank; it is replaced by that of this step.
    `errors`, shaped as the matrices, are added before and overwritten with the part that was not sent. Both
    stay as they are for a matrix whose average is not finite.
    """
    if rest:
        together = group.mean(torch.cat([each.flatten() for each in rest]))
        for each, mean in zip(rest, together.split([each.numel() for each in rest]), strict=True):
            each.copy_(mean.view_as(each))
    if not matrices:
        return
    for name, matrix in matrices.items():
        matrix.add_(errors[name])
    lefts = _mean_of_all(group, {name: matrix @ factors[name] for name, matrix in matrices.items()})
    lefts = {name: torch.linalg.qr(left).Q for name, left in lefts.items()}
    own = {name: matrix.T @ lefts[name] for name, matrix in matrices.items()}
    rights = _mean_of_all(group, own)
    for name, matrix in matrices.items():
        # the rank's own approximation: errors against the average would hold the difference between ranks
        left_over = matrix - lefts[name] @ own[name].T
        keep_if_finite(errors[name], left_over, rights[name])
        torch.matmul(lefts[name], rights[name].T, out=matrix)
        factors[name] = torch.where(rights[name].isfinite().all(), rights[name], factors[name])


def _mean_of_all(group: CountedGroup, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The means over ranks of several tensors, in one all-reduce."""
    flat = group.mean(torch.cat([each.flatten() for each in tensors.values()]))
    parts = flat.split([each.numel() for each in tensors.values()])
    return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}


def first_factor(columns: int, rank: int, seed: tuple[int, int]) -> Tensor:
    """A random right factor, equal on all ranks."""
    generator = torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])
    return torch.randn(columns, rank, generator=generator)


class PowerSGD(Scheme):
    def __init__(self, group: CountedGroup, rank: int, warm_start: bool) -> None:
        super().__init__(group)
        self._rank = rank
        self._warm_start = warm_start
        self._feedback = ErrorFeedback()
        self._factors: State = {}

    def average(self, gradient: FlatGradient, step: int) -> None:
        values = gradient.values.float()  # the factorization exists in float32 and float64 alone
        parts = gradient.split(values)
        compressed = {name: part for name, part in parts.items() if is_compressed(part.shape, self._rank)}
        rest = [part for name, part in parts.items() if name not in compressed]
        errors = gradient.split(self._feedback.of(replace(gradient, values=values)))
        flat_errors = {name: errors[name].view(len(errors[name]), -1) for name in compressed}
        matrices = {name: part.view(len(part), -1) for name, part in compressed.items()}
        if not self._warm_start:
            self._factors.clear()
        for position, (name, matrix) in enumerate(matrices.items()):
            # a checkpoint of another run may have factors of another rank
            if name not in self._factors or self._factors[name].shape[1] != self._rank:
                drawn = first_factor(matrix.shape[1], self._rank, (step * 1009 + gradient.index, position))
                self._factors[name] = to_device(drawn, matrix.device)
            self._factors[name] = self._factors[name].to(matrix)
        average_powersgd(matrices, rest, self.group, self._factors, flat_errors)
        if values is not gradient.values:
            gradient.values.copy_(values)

    def state_dict(self) -> State:
        factors = self._factors if self._warm_start else {}
        return {
            **self._feedback.state_dict(),
            **{_FACTOR + name: factor for name, factor in factors.items()},
        }

    def load_state_dict(self, state: State) -> None:
        self._feedback.load_state_dict(state)
        self._factors = {
            name.removeprefix(_FACTOR): factor for name, factor in state.items() if name.startswith(_FACTOR)
        }


def build(options: GradientCommunicationConfig, world: World) -> PowerSGD:
    return PowerSGD(own_group(world), options.rank, options.warm_start)
