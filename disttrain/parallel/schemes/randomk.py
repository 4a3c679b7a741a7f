"""Scheme `randomk`: all ranks send the same randomly chosen share of their gradients.

Stich et al. 2018, arXiv 1809.07599. The seed is shared, so that no indices travel and a plain all-reduce adds
the values: a rank hands over k b bytes of a bucket of n gradients of b bytes, k = ratio n, at any number of
ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import seeded, to_device
from disttrain.parallel.schemes.topk import TopK, state_bytes

__all__ = ["build", "state_bytes"]


def random_indices(size: int, count: int, seed: tuple[int, int]) -> Tensor:
    """`count` different indices below `size`, in order, equal for equal seeds.

    One index is drawn from each of `count` parts of equal length, give or take one: a permutation of all
    indices would cost more than the communication that it saves.
    """
    bounds = torch.arange(count + 1) * size // count
    widths = bounds.diff()
    drawn = (torch.rand(count, generator=seeded(seed), dtype=torch.float64) * widths).long()
    return bounds[:-1] + torch.minimum(drawn, widths - 1)


class RandomK(TopK):
    """Without error feedback, the mean is scaled by size / count, which makes it unbiased."""

    def exchange(self, values: Tensor, count: int, seed: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        indices = to_device(random_indices(len(values), count, seed), values.device)
        chosen = values[indices] + 0 * values.sum()  # NaN if any value is not finite
        if not self.error_feedback:
            chosen.mul_(len(values) / count)
        return indices, indices[None], self.group.mean(chosen)[None]


def build(group: CountedGroup, ratio: float = 0.01, error_feedback: bool = True) -> RandomK:
    return RandomK(group, ratio, error_feedback)
