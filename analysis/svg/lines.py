"""Lines, and points with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.stats.estimates import Estimate
from analysis.svg.elements import element, mark
from analysis.svg.plot import Plot


def line(
    plot: Plot,
    xs: Sequence[float],
    ys: Sequence[float],
    colour: str,
    *,
    title: str = "",
    key: str | None = None,
    style: str = "",
    dashes: str | None = None,
) -> str:
    """A line through points; a value that is not finite leaves a gap.

    Args:
        style: `dashes`, `thin` or `pale`.
        dashes: lengths of dashes and gaps, which tell lines of one colour apart.
    """
    path, pen_up = "", True
    for x, y in zip(xs, ys, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_up = True
            continue
        path += f"{'M' if pen_up else 'L'}{plot.xs(x):.1f} {plot.ys(y):.1f}"
        pen_up = False
    return mark(
        "path",
        title,
        key,
        d=path,
        class_=f"stroke {colour} {style}".rstrip(),
        stroke_dasharray=dashes or None,
    )


def points(
    plot: Plot,
    xs: Sequence[float],
    estimates: Sequence[Estimate],
    colour: str,
    titles: Sequence[str],
    *,
    key: str | None = None,
    style: str = "",
) -> str:
    """Points with vertical intervals where the estimates have one. `style`: `hollow` or none."""
    parts = []
    kind = "stroke ring" if style == "hollow" else "fill dot"
    for x, estimate, title in zip(xs, estimates, titles, strict=True):
        at, y = plot.xs(x), plot.ys(estimate.value)
        between_repeats = estimate.basis == "repeats"
        if between_repeats and estimate.low is not None and estimate.high is not None:
            low, high = plot.ys(estimate.low), plot.ys(estimate.high)
            bar = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 4:.1f} {low:.1f}h8M{at - 4:.1f} {high:.1f}h8"
            parts.append(element("path", d=bar, class_=f"stroke {colour}"))
        parts.append(mark("circle", title, key, cx=at, cy=y, r=4.5, class_=f"{kind} {colour}"))
    return element("g", *parts, class_="points")


def band(plot: Plot, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> str:
    """The area between two lines."""
    forth = [f"{plot.xs(x):.1f} {plot.ys(y):.1f}" for x, y in zip(xs, high, strict=True)]
    back = [f"{plot.xs(x):.1f} {plot.ys(y):.1f}" for x, y in zip(xs, low, strict=True)][::-1]
    return element("path", d=f"M{'L'.join(forth + back)}Z", class_=f"fill {colour} band")
