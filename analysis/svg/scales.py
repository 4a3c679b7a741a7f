"""Scales from data to positions, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """The domain of one axis. Both bounds are greater than zero on a logarithmic axis."""

    label: str
    """With its unit; empty without a label."""
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None
    """Positions of ticks; round numbers by default."""
    form: Callable[[float], str] = "{:,.6g}".format
    """Text of a tick."""

    @property
    def marks(self) -> list[float]:
        """Ticks within the domain."""
        if self.ticks is not None:
            return list(self.ticks)
        return log_ticks(self.low, self.high) if self.log else round_ticks(self.low, self.high)


@dataclass(frozen=True)
class Scale:
    """Map the domain of an axis linearly, or its logarithm, to positions from `start` to `end`."""

    axis: Axis
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value; values outside of the domain are moved to its nearer bound."""
        low, high = self.axis.low, self.axis.high
        value = min(max(value, low), high)
        if high <= low:
            return (self.start + self.end) / 2
        if self.axis.log:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` + 1 multiples of 1, 2 or 5 times a power of ten, within [`low`, `high`]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of two or ten within [`low`, `high`], thinned to at most `most`."""
    base = 2.0 if high / low <= 2.0**10 else 10.0
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    if last < first:
        return [low, high]
    stride = max(1, -(-(last - first + 1) // most))
    return [base**power for power in range(first, last + 1, stride)]
