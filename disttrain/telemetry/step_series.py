"""A series of one number per step, in 16 bytes per step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from disttrain.telemetry.summary import thin

P = TypeVar("P")


class StepSeries:
    """Steps and their values."""

    def __init__(self) -> None:
        self._points = array("d")  # step, value, step, value, ...

    def __len__(self) -> int:
        return len(self._points) // 2

    def add(self, step: int, value: float) -> None:
        self._points.extend((step, value))

    @property
    def newest(self) -> tuple[int, float] | None:
        """The last step and its value."""
        return (int(self._points[-2]), self._points[-1]) if self._points else None

    @property
    def values(self) -> Sequence[float]:
        """The values, in order."""
        return self._points[1::2]

    def thinned(self) -> list[tuple[int, float | None]]:
        """The points that `summary.thin` keeps. A value that is not finite is None."""
        points = [(int(self._points[2 * at]), self._points[2 * at + 1]) for at in thin(range(len(self)))]
        return [(step, value if math.isfinite(value) else None) for step, value in points]

    def points(self, make: Callable[..., P], value: str) -> list[P]:
        """A record for each point of `thinned`, with the fields `step` and `value`."""
        return [make(**{"step": step, value: number}) for step, number in self.thinned()]

    def tensor(self) -> Tensor:
        """A copy, for a checkpoint."""
        return torch.from_numpy(np.array(self._points))

    def extend(self, points: Tensor) -> None:
        """Append the result of `tensor`."""
        self._points.frombytes(points.numpy().tobytes())
