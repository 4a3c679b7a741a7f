"""Text of numbers in pages and figures: three significant digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.stats.estimates import Estimate

RESOLUTION_S = 1e-12
"""Shorter durations are rounding errors of sums, and are printed as 0."""
RESOLUTION_MONEY = 1e-6
"""Smaller amounts of money are printed as 0."""
THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"
_TIME = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))


def time_scale(largest_s: float) -> tuple[float, str]:
    """Factor and unit for durations up to `largest_s` seconds."""
    return next((factor, unit) for floor, unit, factor in _TIME if largest_s >= floor)


def number(value: float) -> str:
    """Three significant digits, thousands grouped: `0.412`, `77.6`, `12,400`."""
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")


def money(value: float) -> str:
    """An amount in three significant digits without an exponent: `0.168`, `0.0000213`, `12,400`; `0`."""
    if abs(value) < RESOLUTION_MONEY:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1e-4:
        return number(rounded)
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}"


def mass_scale(value_g: float) -> tuple[float, str]:
    """Factor and unit for a mass in grams: kg, g, mg or µg."""
    scales = ((1e3, 1e-3, "kg"), (1.0, 1.0, "g"), (1e-3, 1e3, "mg"))
    return next(((factor, unit) for floor, factor, unit in scales if abs(value_g) >= floor), (1e6, "µg"))


def grams(value_g: float) -> str:
    """`1.20 kg`, `41.2 g`, `0.310 µg`; `0 g`."""
    if value_g == 0:
        return "0 g"
    factor, unit = mass_scale(value_g)
    return f"{number(value_g * factor)} {unit}"


def resolved_s(value: float) -> float:
    """The duration in seconds; 0 where it is shorter than `RESOLUTION_S`."""
    return value if abs(value) >= RESOLUTION_S else 0.0


def seconds(value: float) -> str:
    """`1.20 s`, `41.2 ms`, `310 µs`."""
    value = resolved_s(value)
    factor, unit = time_scale(abs(value))
    return f"{number(value * factor)} {unit}"


def span(value_s: float) -> str:
    """Durations up to hours: `120 ms`, `42.0 s`, `3.10 min`, `26.0 h`; `0 s`."""
    if 0 < value_s < 1:
        return seconds(value_s)
    for name, size_s in (("h", 3600), ("min", 60)):
        if value_s >= size_s:
            return f"{number(value_s / size_s)} {name}"
    return f"{number(value_s)} s"


def rate(value: float, unit: str = "samples/s") -> str:
    return f"{number(value)} {unit}"


def percent(value: float, digits: int = 1) -> str:
    """A share between 0 and 1 as `73.1 %`."""
    return f"{fixed(100 * value, digits)} %"


def points(share: float) -> str:
    """A share of gain or loss in percentage points, with its sign: `+2.1 pp`, `-0.3 pp`; `0.0 pp`."""
    return f"{signed(100 * share)} pp"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign; one that is rounded to zero has none: `+2.1`, `-0.3`, `0.0`."""
    text = fixed(value, digits)
    return f"+{text}" if float(text) > 0 else text


def fixed(value: float, digits: int = 1) -> str:
    """A number with `digits` after the point; one that is rounded to zero has no sign."""
    return f"{value:z.{digits}f}"


def times(value: float, digits: int = 2) -> str:
    """A ratio as `2.87×`."""
    return f"{value:.{digits}f}\N{MULTIPLICATION SIGN}"


def binary_bytes(value: float) -> str:
    """`1.20 GiB`, `310 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{value:.0f} B"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def short_count(value: int) -> str:
    """A whole number below a million in full, else with three digits: `16`, `4.20 M`, `7.00 G`."""
    for name, factor in (("G", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{number(value / factor)} {name}"
    return count(value)


def count(value: int) -> str:
    return f"{value:,}"


def plural(value: int, noun: str) -> str:
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def interval(estimate: Estimate, factor: float = 1.0, digits: int = 1) -> str:
    """`[70.2, 76.1]`, marked if it does not contain the spread between repeats; or the reason for none."""
    if estimate.basis == "not stationary":
        return "not stationary, no interval"
    if estimate.basis == "maximum":
        return "maximum"
    if estimate.low is None or estimate.high is None:
        return "n=1, no interval" if estimate.repeats == 1 else "no interval"
    found = bounds(fixed(estimate.low * factor, digits), fixed(estimate.high * factor, digits))
    return f"{found} within the run" if estimate.basis == "within run" else found


def bounds(low: str, high: str) -> str:
    """An interval: `[70.2, 76.1]`. Its comma separates the bounds alone; a narrow space groups thousands."""
    return f"[{', '.join(each.replace(',', THIN_SPACE) for each in (low, high))}]"
