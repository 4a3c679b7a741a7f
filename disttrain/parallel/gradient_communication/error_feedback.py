"""Error feedback: the part of a gradient that a lossy scheme did not send is added to the next gradient.

Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019, arXiv 1901.09847. A mean that
is not finite leaves the errors as they were, because its step is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from disttrain.parallel.gradient_communication.base import FlatGradient, State, split_flat

_PREFIX = "error."


class ErrorFeedback:
    """The errors of this rank, by parameter: they fit any division of the parameters into buckets."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str, ...], tuple[Mapping[str, torch.Size], Tensor]] = {}
        self._loaded: State = {}

    def of(self, gradient: FlatGradient) -> Tensor:
        """The error of a bucket, laid out as its values, which the caller updates in place; zero at first."""
        names = tuple(gradient.shapes)
        if names not in self._flat:
            error = gradient.values.new_zeros(len(gradient.values))
            for name, part in gradient.split(error).items():
                if name in self._loaded:
                    part.copy_(self._loaded.pop(name))
            self._flat[names] = gradient.shapes, error
        return self._flat[names][1]

    def state_dict(self) -> State:
        """The errors under names that begin with `error.`."""
        parts = [split_flat(error, shapes) for shapes, error in self._flat.values()]
        return {_PREFIX + name: part for each in [self._loaded, *parts] for name, part in each.items()}

    def load_state_dict(self, state: State) -> None:
        """Replace all errors by those in `state`; those that it lacks are zero."""
        self._flat.clear()
        self._loaded = {
            name.removeprefix(_PREFIX): error for name, error in state.items() if name.startswith(_PREFIX)
        }


def keep_if_finite(error: Tensor, left_over: Tensor, mean: Tensor) -> None:
    """Overwrite `error` with `left_over` if all of `mean` is finite: equal on all ranks, as the mean is."""
    torch.where(mean.isfinite().all(), left_over, error, out=error)
