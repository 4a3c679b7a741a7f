"""Scheme `powersgd`: gradients of matrices travel as two factors of low rank.

Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2. Of an n x m matrix a rank hands over r (n + m)
values in two all-reduces; kernels count as matrices of n = shape[0] rows. Parameters for which that is not
less than their size travel uncompressed, together in a third all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import (
    FlatGradient,
    Scheme,
    State,
    by_prefix,
    keep_if_finite,
    seeded,
    to_device,
)

_FACTOR = "q."


def is_compressed(shape: torch.Size, rank: int) -> bool:
    """Whether factors of `rank` are smaller than a parameter of `shape`."""
    rows, columns = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
    return rank * (rows + columns) < rows * columns


class PowerSGD(Scheme):
    def __init__(self, group: CountedGroup, rank: int, warm_start: bool) -> None:
        super().__init__(group, error_feedback=True)
        self._rank = rank
        self._warm_start = warm_start
        self._factors: State = {}
        """Right factor Q of each matrix, columns x rank, of the last step."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        # the factorization exists in float32 and float64 alone
        gradient, narrow = replace(gradient, values=gradient.values.float()), gradient
        parts, errors = gradient.split(gradient.values), gradient.split(self.error_of(gradient))
        names = [name for name, shape in gradient.shapes.items() if is_compressed(shape, self._rank)]
        self.group.average([part for name, part in parts.items() if name not in names])
        if not self._warm_start:
            self._factors.clear()
        matrices = [parts[name].flatten(1) for name in names]
        left_over = [errors[name].flatten(1) for name in names]
        for position, (name, matrix) in enumerate(zip(names, matrices, strict=True)):
            factor = self._factors.get(name)
            # a checkpoint of another run may have factors of another rank
            if factor is None or factor.shape[1] != self._rank:
                seed = seeded((step * 1009 + gradient.index, position))
                factor = to_device(torch.randn(matrix.shape[1], self._rank, generator=seed), matrix.device)
            self._factors[name] = factor.to(matrix)
        self._average(names, matrices, left_over)
        if narrow.values is not gradient.values:
            narrow.values.copy_(gradient.values)

    def _average(self, names: Sequence[str], matrices: Sequence[Tensor], errors: Sequence[Tensor]) -> None:
        """Overwrite each matrix with an average over ranks of low rank, and its error with what was not sent.

        Factor and error stay as they are for a matrix whose average is not finite.
        """
        factors = [self._factors[name] for name in names]
        lefts = [matrix.add_(error) @ q for matrix, error, q in zip(matrices, errors, factors, strict=True)]
        self.group.average(lefts)
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        own = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        rights = [right.clone() for right in own]
        self.group.average(rights)
        for at, (name, matrix, left, right) in enumerate(zip(names, matrices, lefts, rights, strict=True)):
            # the rank's own approximation: errors against the average would hold the difference between ranks
            keep_if_finite(errors[at], matrix - left @ own[at].T, right)
            torch.matmul(left, right.T, out=matrix)
            self._factors[name] = torch.where(right.isfinite().all(), right, factors[at])

    def state_dict(self) -> State:
        factors = self._factors if self._warm_start else {}
        return {**super().state_dict(), **{_FACTOR + name: factor for name, factor in factors.items()}}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._factors = by_prefix(state, _FACTOR)


def state_bytes(parameters: Sequence[Tensor], rank: int, warm_start: bool) -> int:
    """Bytes of the errors and factors, in float32, once all gradients have been averaged.

    Without `warm_start`, the factors of one bucket alone exist at a time; they do not count.
    """
    kept = [p for p in parameters if is_compressed(p.shape, rank)] if warm_start else []
    return 4 * (sum(p.numel() for p in parameters) + sum(rank * math.prod(p.shape[1:]) for p in kept))


def build(group: CountedGroup, rank: int = 4, warm_start: bool = True) -> PowerSGD:
    return PowerSGD(group, rank, warm_start)
