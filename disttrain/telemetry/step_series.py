"""A series of one number per step, in 16 bytes per step."""

from __future__ import annotations

import math
from array import array

import numpy as np
import torch
from torch import Tensor

from disttrain.telemetry.summary import thin


class StepSeries:
    """Steps and their values. A value that is not finite is read as None."""

    def __init__(self) -> None:
        self._steps, self._values = array("q"), array("d")

    def add(self, step: int, value: float) -> None:
        self._steps.append(step)
        self._values.append(value)

    @property
    def newest(self) -> tuple[int, float] | None:
        """The last step and its value."""
        return (self._steps[-1], self._values[-1]) if self._steps else None

    def thinned(self) -> list[tuple[int, float | None]]:
        """The points that `summary.thin` keeps."""
        places = thin(range(len(self._steps)))
        return [(self._steps[at], _finite(self._values[at])) for at in places]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Steps (int64) and values (float64), for a checkpoint."""
        return as_tensor(self._steps), as_tensor(self._values)

    def extend(self, steps: Tensor, values: Tensor) -> None:
        """Append the result of `tensors`."""
        extend(self._steps, steps)
        extend(self._values, values)


def as_tensor(numbers: array[int] | array[float]) -> Tensor:
    """A copy."""
    return torch.from_numpy(np.array(numbers))


def extend(numbers: array[int] | array[float], by: Tensor) -> None:
    """Append the result of `as_tensor` of an array of the same type."""
    numbers.frombytes(by.numpy().tobytes())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
