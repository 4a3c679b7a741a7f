"""Text of numbers in pages and figures: each unit has its scales and its digits in one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from analysis.stats.estimates import Estimate

Unit = Literal[
    "",  # text
    "count",  # a whole number
    "number",  # a number without unit
    "s",  # seconds; a column has one scale
    "span",  # seconds, up to hours
    "share",  # 0 to 1, shown in percent
    "points",  # a difference of shares, shown in percentage points
    "ratio",  # shown as 2.87×
    "samples/s",
    "tokens/s",
    "B",
    "B/s",
    "FLOP/s",
    "h",
    "loss",
    "J",
    "J/sample",
    "W",
    "g",
    "Hz",
    "°C",
    "currency",  # money in the currency of the price list
    "magnitude",  # a large number
]
NOTHING = "\N{EN DASH}"
"""A value that was not measured."""
_RESOLUTION = 1e-6
"""Smaller numbers, after their scale, are printed as 0: rounding errors of sums."""
_SMALL = 1e-3
"""Share of the largest value of a column below which one keeps its own scale."""
_THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"


class _Form(NamedTuple):
    scales: Sequence[tuple[float, str]]
    """Size and text of units, largest first."""
    digits: int | None = None
    """After the point; three significant ones without it."""


def _decimal(unit: str) -> _Form:
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _Form([(size, f" {prefix}{unit}") for size, prefix in prefixes])


_SECONDS = ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"))
_FORMS: dict[Unit, _Form] = {
    "count": _Form([(1.0, "")], 0),
    "number": _Form([(1.0, "")]),
    "currency": _Form([(1.0, "")]),
    "loss": _Form([(1.0, "")], 4),
    "s": _Form(_SECONDS),
    "span": _Form([(3600.0, " h"), (60.0, " min"), *_SECONDS]),
    "share": _Form([(0.01, " %")], 1),
    "points": _Form([(0.01, " pp")], 1),
    "ratio": _Form([(1.0, "\N{MULTIPLICATION SIGN}")], 2),
    "B": _Form([(2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B")]),
    "g": _Form([(1e3, " kg"), (1.0, " g"), (1e-3, " mg"), (1e-6, " µg")]),
    "B/s": _decimal("B/s"),
    "FLOP/s": _decimal("FLOP/s"),
    "Hz": _decimal("Hz"),
    "magnitude": _decimal(""),
}


class Cell(NamedTuple):
    """Text of one value; `interval` and `repeats` are empty for values that are no estimates."""

    text: str
    interval: str = ""
    """`[70.2, 76.1]`, or why there is none."""
    repeats: str = ""

    @property
    def in_text(self) -> str:
        """Within a sentence: `91.3 % ([90.1, 92.4], n=3)`."""
        return f"{self.text} ({self.interval}, {self.repeats})" if self.interval else self.text

    @property
    def line(self) -> str:
        """All on one line: `91.3 % [90.1, 92.4], n=3`."""
        known = ", ".join(filter(None, (self.interval, self.repeats)))
        separator = " " if known.startswith("[") else ", " if known else ""
        return f"{self.text}{separator}{known}"


def _form(unit: Unit) -> _Form:
    return _FORMS.get(unit) or _Form([(1.0, f" {unit}")])


def scale(unit: Unit, largest: float) -> tuple[float, str]:
    """Size and text of the unit for numbers up to `largest`, rounded to three digits: 0.001 and ` ms`."""
    scales = _form(unit).scales
    largest = abs(largest) or 1.0
    return next((each for each in scales if float(f"{largest / each[0]:.3g}") >= 1), scales[-1])


def cell(value: Any, unit: Unit, largest: float = 0.0, digits: int | None = None) -> Cell:
    """Format a value in its unit.

    Args:
        largest: the largest number of a column, whose scale the others have from a thousandth of it on.
        digits: after the point, in place of those of the unit.
    """
    if value is None or value != value:
        return Cell(NOTHING)
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, str) or not unit:
        return Cell(str(value))
    estimate = value if isinstance(value, Estimate) else Estimate(value, None, None, 0)
    numbers = [each for each in (estimate.value, estimate.low, estimate.high) if each is not None]
    own = 0 < abs(numbers[0]) < _SMALL * largest
    size, suffix = scale(unit, (0 if own else largest) or max(map(abs, numbers)))
    places = _form(unit).digits if digits is None else digits
    first, *bounds = (_digits(each / size, places) for each in numbers)
    text = f"{'+' if unit == 'points' and float(first.replace(',', '')) > 0 else ''}{first}{suffix}"
    if not estimate.repeats:
        return Cell(text)
    interval = {"repeats": "no interval", "maximum": "maximum"}.get(
        estimate.basis, f"{estimate.basis}, no interval"
    )
    if bounds:
        interval = f"[{', '.join(each.replace(',', _THIN_SPACE) for each in bounds)}]"
        interval += " within the run" if estimate.basis == "within run" else ""
    return Cell(text, interval, f"n={estimate.repeats}")


def text(value: float, unit: Unit, digits: int | None = None) -> str:
    return cell(value, unit, digits=digits).text


def percent(value: float, digits: int = 1) -> str:
    """A share between 0 and 1 as `73.1 %`."""
    return text(value, "share", digits)


number, seconds, span, times, money, binary_bytes = (
    partial(text, unit=unit) for unit in ("number", "s", "span", "ratio", "currency", "B")
)


def short_count(value: float) -> str:
    """A whole number below a million in full: `16,384`, `4.20 M`, `7.00 G`."""
    return text(value, "magnitude" if value >= 1e6 else "count")


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plural(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def _digits(value: float, digits: int | None) -> str:
    """Grouped thousands; one that is rounded to zero has no sign."""
    if digits is not None:
        return f"{value:z,.{digits}f}"
    rounded = float(f"{value:.3g}") if abs(value) >= _RESOLUTION else 0.0
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}" if rounded else "0"
