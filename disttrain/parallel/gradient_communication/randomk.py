"""Scheme `randomk`: all ranks send the same randomly chosen share of their gradients.

Stich et al. 2018, arXiv 1809.07599. The seed is shared, so that no indices travel and a plain all-reduce adds
the values: a rank hands over k b bytes of a bucket of n gradients of b bytes, k = ratio n, at any number of
ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, to_device
from disttrain.parallel.gradient_communication.counted_group import CountedGroup, own_group
from disttrain.parallel.gradient_communication.error_feedback import keep_if_finite
from disttrain.parallel.gradient_communication.topk import TopK, count_of
from disttrain.runtime.process_group import World


def random_indices(size: int, count: int, seed: tuple[int, int]) -> Tensor:
    """`count` different indices below `size`, in order, equal for equal seeds.

    One index is drawn from each of `count` parts of equal length, give or take one: a permutation of all
    indices would cost more than the communication that it saves.
    """
    generator = torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])
    bounds = torch.arange(count + 1) * size // count
    widths = bounds.diff()
    drawn = (torch.rand(count, generator=generator, dtype=torch.float64) * widths).long()
    return bounds[:-1] + torch.minimum(drawn, widths - 1)


def average_randomk(values: Tensor, group: CountedGroup, indices: Tensor, error: Tensor | None) -> None:
    """Overwrite `values` with the mean over ranks at `indices`, elsewhere 0.

    With `error`, its values are added before, and it is overwritten with the part that was not sent, unless
    the mean is not finite. Without, the mean is scaled by size / count, which makes it unbiased. A rank with
    a value that is not finite anywhere sends NaN.
    """
    if error is not None:
        values.add_(error)
    chosen = values[indices] + 0 * values.sum()
    if error is None:
        chosen.mul_(len(values) / len(indices))
    mean = group.mean(chosen)
    if error is not None:
        keep_if_finite(error, values.index_fill(0, indices, 0.0), mean)
    values.zero_()
    values[indices] = mean


class RandomK(TopK):
    """`TopK` in options and state."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        values, error = gradient.values, self._feedback.of(gradient) if self._feedback else None
        indices = random_indices(len(values), count_of(self._ratio, len(values)), (step, gradient.index))
        average_randomk(values, self.group, to_device(indices, values.device), error)


def build(options: GradientCommunicationConfig, world: World) -> RandomK:
    return RandomK(own_group(world), options.ratio, options.error_feedback)
