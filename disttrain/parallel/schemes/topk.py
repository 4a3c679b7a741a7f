"""Scheme `topk`: each rank sends its gradients of largest magnitude, with their indices.

Aji and Heafield 2017, arXiv 1704.05021; with error feedback: Stich et al. 2018, arXiv 1809.07599. Of a bucket
of n gradients of b bytes, a rank hands over k (4 + b) bytes, k = ratio n. Each rank receives the parts of all
others, so the saving falls as the number of ranks grows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme, keep_if_finite


def count_of(ratio: float, size: int) -> int:
    """Number of gradients sent of `size`, at least 1."""
    return max(1, round(ratio * size))


class TopK(Scheme):
    """Overwrites a gradient with the mean over ranks of what each rank sends of it, elsewhere 0."""

    def __init__(self, group: CountedGroup, ratio: float, error_feedback: bool) -> None:
        super().__init__(group, error_feedback)
        self._ratio = ratio

    def average(self, gradient: FlatGradient, step: int) -> None:
        values = gradient.values
        error = self.error_of(gradient) if self.error_feedback else None
        if error is not None:
            values.add_(error)
        count = count_of(self._ratio, len(values))
        own_indices, indices, means = self.exchange(values, count, (step, gradient.index))
        if error is not None:
            keep_if_finite(error, values.index_fill(0, own_indices, 0.0), means)
        values.zero_()
        for its_indices, its_means in zip(indices, means, strict=True):
            values.index_add_(0, its_indices, its_means)

    def exchange(self, values: Tensor, count: int, seed: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Indices that this rank sends; all indices that it receives, and what is to be added there, in rows.

        A value of some rank that is not finite makes a received one not finite on all ranks.
        """
        own_indices = torch.topk(values.abs(), count, sorted=False).indices
        chosen = values[own_indices]
        indices = self.group.all_gather(own_indices.to(torch.int32))
        return own_indices, indices, self.group.all_gather(chosen).div_(self.group.size)


def state_bytes(parameters: Iterable[Tensor], error_feedback: bool) -> int:
    """Bytes of the errors, once all gradients have been averaged."""
    return sum(parameter.nbytes for parameter in parameters) if error_feedback else 0


def build(group: CountedGroup, ratio: float = 0.01, error_feedback: bool = True) -> TopK:
    return TopK(group, ratio, error_feedback)
