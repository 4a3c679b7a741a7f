"""Claim of a curve: what its runs settle about the speed-up of the largest size.

A caveat that forbids the headline decides, else the first case that holds. Each case has its sentence in
`report/templates/sentences.j2`.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.results.caveats import Caveat, compared_sizes
from analysis.results.curves import Curve, Point
from analysis.study import Study

WIDE = 1.5
"""Ratio of the bounds of an interval above which nothing is stated."""


@dataclass(frozen=True)
class Claim:
    """What may be said of one curve."""

    case: str
    """`forbidden`, `no base`, `one size`, `one repeat`, `unsettled`, `no gain` or `settled`."""
    curve: Curve
    base: Point | None = None
    point: Point | None = None
    """The size that is compared with the base."""
    caveat: Caveat | None = None
    """Of the case `forbidden`."""


def claim(study: Study, curve: Curve) -> Claim:
    """The first case that holds for the largest size of a curve."""
    pair = compared_sizes(curve)
    base, point = pair or (curve.base, None)
    compared = [each for each in (base, point) if each is not None]
    if caveat := study.forbidden("headline", curve, *compared):
        return Claim("forbidden", curve, base, point, caveat)
    if base is None:
        return Claim("no base", curve)
    if point is None:
        return Claim("one size", curve, base)
    return Claim(_case(point), curve, base, point)


def _case(point: Point) -> str:
    speedup = point.speedup
    assert speedup is not None
    if speedup.basis != "repeats" or speedup.low is None or speedup.high is None:
        return "one repeat"
    if speedup.high > WIDE * speedup.low:
        return "unsettled"
    return "no gain" if speedup.low <= 1 <= speedup.high else "settled"
