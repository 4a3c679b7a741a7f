"""Scheme `topk`: each rank sends its gradients of largest magnitude, with their indices.

Aji and Heafield 2017, arXiv 1704.05021; with error feedback: Stich et al. 2018, arXiv 1809.07599. Of a bucket
of n gradients of b bytes, a rank hands over k (4 + b) bytes, k = ratio n. Each rank receives the parts of all
others, so the saving falls as the number of ranks grows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme, State
from disttrain.parallel.gradient_communication.counted_group import CountedGroup, own_group
from disttrain.parallel.gradient_communication.error_feedback import ErrorFeedback, keep_if_finite
from disttrain.runtime.process_group import World


def count_of(ratio: float, size: int) -> int:
    """Number of gradients sent of `size`, at least 1."""
    return max(1, round(ratio * size))


def average_topk(values: Tensor, group: CountedGroup, count: int, error: Tensor | None) -> None:
    """Overwrite `values` with the mean over ranks of the `count` largest values of each rank, elsewhere 0.

    With `error`, its values are added before, and it is overwritten with the part that was not sent, unless
    the mean is not finite.
    """
    if error is not None:
        values.add_(error)
    indices = torch.topk(values.abs(), count, sorted=False).indices
    chosen = values[indices]
    all_indices = group.all_gather(indices.to(torch.int32))
    all_chosen = group.all_gather(chosen).div_(group.size)
    if error is not None:  # a value that is not finite is among the largest
        keep_if_finite(error, values.index_fill(0, indices, 0.0), all_chosen)
    values.zero_()
    for each_indices, each_chosen in zip(all_indices, all_chosen, strict=True):
        values.index_add_(0, each_indices, each_chosen)


class TopK(Scheme):
    def __init__(self, group: CountedGroup, ratio: float, error_feedback: bool) -> None:
        super().__init__(group)
        self._ratio = ratio
        self._feedback = ErrorFeedback() if error_feedback else None

    def average(self, gradient: FlatGradient, step: int) -> None:
        error = self._feedback.of(gradient) if self._feedback else None
        average_topk(gradient.values, self.group, count_of(self._ratio, len(gradient.values)), error)

    def state_dict(self) -> State:
        return self._feedback.state_dict() if self._feedback else {}

    def load_state_dict(self, state: State) -> None:
        if self._feedback:
            self._feedback.load_state_dict(state)


def build(options: GradientCommunicationConfig, world: World) -> TopK:
    return TopK(own_group(world), options.ratio, options.error_feedback)
