"""Text of table values: the number with its unit, its interval, and the number of repeats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from analysis import units
from analysis.report.section import RunLink, Unit, Value
from analysis.stats.estimates import Estimate

_SMALL = 1e-3
"""Share of the longest duration of a column below which one keeps its own unit."""
NOTHING = "\N{EN DASH}"
"""A value that was not measured."""


class Cell(NamedTuple):
    """Text of one value; `interval` and `repeats` are empty for values that are no estimates."""

    text: str
    interval: str = ""
    repeats: str = ""

    @property
    def in_text(self) -> str:
        """Within a sentence: `91.3 % ([90.1, 92.4], n=3)`."""
        if not self.interval:
            return self.text
        known = [self.interval] if self.repeats in self.interval else [self.interval, self.repeats]
        return f"{self.text} ({', '.join(known)})"

    @property
    def line(self) -> str:
        """All on one line: `91.3 % [90.1, 92.4], n=3`."""
        if not self.interval:
            return self.text
        separator = " " if self.interval.startswith("[") else ", "
        repeats = f", {self.repeats}" if self.repeats not in self.interval else ""
        return f"{self.text}{separator}{self.interval}{repeats}"


def cell(value: Value, unit: Unit, largest_s: float = 0.0) -> Cell:
    """Format a value in the unit of its column.

    `largest_s`: the longest duration of the column, whose unit the others have from a thousandth of it on.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell(NOTHING)
    if isinstance(value, RunLink):
        return Cell(value.name)
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, str):
        return Cell(value)
    if unit == "s":
        return _duration(value if isinstance(value, Estimate) else Estimate(value, None, None, 0), largest_s)
    return _estimate(value, unit) if isinstance(value, Estimate) else Cell(_FORMS[unit](value))


def _estimate(value: Estimate, unit: Unit) -> Cell:
    text = _FORMS[unit](value.value)
    repeats = f"n={value.repeats}"
    if value.low is None or value.high is None:
        return Cell(text, units.interval(value), repeats)
    factor, digits = _scale(value.value, unit)
    low, high = value.low, value.high
    if digits is not None:
        bounds = units.bounds(units.fixed(low * factor, digits), units.fixed(high * factor, digits))
    else:
        form = units.money if unit == "currency" else units.number
        bounds = units.bounds(form(low * factor), form(high * factor))
    return Cell(text, _marked(bounds, value), repeats)


def _duration(value: Estimate, largest_s: float) -> Cell:
    """Value and interval in the unit of their column, or else of their longest: `0.458 ms [0, 11.4]`."""
    known = [units.resolved_s(each or 0.0) for each in (value.value, value.low, value.high)]
    longest_s = max(map(abs, known))
    if largest_s and not 0 < abs(known[0]) < _SMALL * largest_s:
        longest_s = largest_s
    factor, unit = units.time_scale(longest_s)
    mean, low, high = (units.number(each * factor) for each in known)
    text, repeats = f"{mean} {unit}", f"n={value.repeats}"
    if not value.repeats:
        return Cell(text)
    if value.low is None or value.high is None:
        return Cell(text, units.interval(value), repeats)
    return Cell(text, _marked(units.bounds(low, high), value), repeats)


def _marked(bounds: str, value: Estimate) -> str:
    return f"{bounds} within the run" if value.basis == "within run" else bounds


def _scale(value: float, unit: Unit) -> tuple[float, int | None]:
    """Factor from a value to its text, and digits after the point (None: three significant ones)."""
    if unit in ("share", "points"):
        return 100.0, 1
    if unit == "ratio":
        return 1.0, 2
    if unit == "g":
        return units.mass_scale(value)[0], None
    if unit == "span":
        return next((1 / size for size in (3600, 60) if value >= size), 1.0), None
    if unit in ("B", "B/s"):
        return 1 / _binary(value) if unit == "B" else 1 / _decimal(value)[0], None
    if unit in ("FLOP/s", "Hz"):
        return 1 / _decimal(value)[0], None
    return 1.0, None


def _binary(value: float) -> float:
    return next((float(size) for size in (2**30, 2**20, 2**10) if abs(value) >= size), 1.0)


def _decimal(value: float) -> tuple[float, str]:
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    return next(((size, prefix) for size, prefix in prefixes if abs(value) >= size), (1.0, ""))


def _with_prefix(unit: str) -> Callable[[float], str]:
    def text(value: float) -> str:
        size, prefix = _decimal(value)
        return f"{units.number(value / size)} {prefix}{unit}"

    return text


def _with_unit(unit: str) -> Callable[[float], str]:
    return lambda value: f"{units.number(value)} {unit}"


_FORMS: dict[Unit, Callable[[float], str]] = {
    "": lambda value: f"{value}",
    "count": lambda value: f"{value:,.0f}",
    "number": units.number,
    "span": units.span,
    "share": units.percent,
    "points": units.points,
    "ratio": units.times,
    "B": units.binary_bytes,
    "loss": "{:.4f}".format,
    "currency": units.money,
    "g": units.grams,
    **{unit: _with_prefix(unit) for unit in ("B/s", "FLOP/s", "Hz")},
    **{
        unit: _with_unit(unit)
        for unit in ("samples/s", "tokens/s", "h", "J", "J/sample", "W", "\N{DEGREE SIGN}C")
    },
}
