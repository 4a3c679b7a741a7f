"""Points with intervals, and lines, over two axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from analysis.draw.style import (
    COLOURS,
    MARKERS,
    Axis,
    LegendItem,
    Linestyle,
    curve_colour,
    errors,
    mark,
    panel,
    styled,
)
from analysis.stats.estimates import Estimate, Floats

HEIGHT = 220.0
"""Of the plot, without the margins."""
_FEW = 12
"""Values of a line up to which each has a marker."""
_BESIDE = 5 / 72
"""Inches between the points of two curves at one place."""


@dataclass(frozen=True)
class Dot:
    """An estimate of one curve."""

    curve: str
    x: float
    estimate: Estimate
    title: str
    """Tooltip."""
    text: str = ""
    """Above the point."""
    pale: bool = False
    """Whether the point stands back."""


@dataclass(frozen=True)
class Line:
    """Values by step of one run; a value that is not finite leaves a gap."""

    xs: Sequence[float] | Floats
    ys: Sequence[float] | Floats
    colour: str
    title: str
    key: str
    line: Linestyle = "-"
    rings: bool = False
    """Rings in place of a line."""


@dataclass(frozen=True)
class Guide:
    """A dashed line between two points, as the ideal; one entry in the legend for each label."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    label: str = "ideal"
    line: Linestyle = "--"


def extent(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """The range of estimates, with their intervals as far as these do not dwarf them."""
    low, high = min(each.value for each in estimates), max(each.value for each in estimates)
    lows, highs = ([end for each in estimates if (end := getattr(each, name))] for name in ("low", "high"))
    return max(low / 2, min([low, *lows])), min(1.5 * high, max([high, *highs]))


@styled
def points(
    dots: Sequence[Dot],
    x: Axis,
    y: Axis,
    guides: Sequence[Guide] = (),
    *,
    band: tuple[float, float] | None = None,
    emulated: bool,
) -> Figure:
    """Points of curves with their intervals; a point without one is hollow, and those of several curves stand
    beside each other. An interval that leaves the axis ends in an arrow. A pale line that guides the eye
    joins the points, of several at one place the last.

    Args:
        band: range of the vertical axis with a pale ground.
    """
    curves: dict[str, list[Dot]] = {}
    for dot in dots:
        curves.setdefault(dot.curve, []).append(dot)
    legend = [LegendItem(label, curve_colour(at), key=label) for at, label in enumerate(curves)]
    ideal = {guide.label: LegendItem(guide.label, "faint", guide.line) for guide in guides}
    figure, axes = panel(
        HEIGHT, x, y, [*(legend if len(curves) > 1 else []), *ideal.values()], emulated=emulated
    )
    if band:
        axes.axhspan(*band, color=COLOURS["faint"], alpha=0.18, linewidth=0)
    for guide in guides:
        ys = np.clip(guide.ys, *axes.get_ylim())
        axes.plot(guide.xs, ys, color=COLOURS["faint"], linewidth=1.2, linestyle=guide.line)
    for at, (label, own) in enumerate(curves.items()):
        colour, marker = COLOURS[curve_colour(at)], MARKERS[at % len(MARKERS)]
        beside = ScaledTranslation(_BESIDE * (at - (len(curves) - 1) / 2), 0, figure.dpi_scale_trans)
        place: dict[str, Any] = {"color": colour, "transform": axes.transData + beside}
        joined = {dot.x: dot.estimate.value for dot in own}
        (line,) = axes.plot([*joined], [*joined.values()], alpha=0.4, **place)
        mark(line, key=label)
        for dot in own:
            bar = errors(dot.estimate)
            place |= {"mfc": colour if bar else COLOURS["bg"], "alpha": 0.4 if dot.pale else None}
            point, _, _ = axes.errorbar(dot.x, dot.estimate.value, bar, fmt=marker, markersize=7, **place)
            mark(point, dot.title, label)
            for end, limit, sign, arrow in zip(
                (dot.estimate.low, dot.estimate.high), axes.get_ylim(), (-1, 1), "v^", strict=True
            ):
                if end is not None and sign * end > sign * limit:
                    axes.plot(dot.x, limit, arrow, markersize=8, clip_on=False, **place)
            if dot.text:
                top = dot.x, dot.estimate.value
                axes.annotate(dot.text, top, (0, 7), textcoords="offset points", ha="center")
    return figure


@styled
def lines(runs: Sequence[Line], x: Axis, y: Axis, legend: Sequence[LegendItem], *, emulated: bool) -> Figure:
    """A line for each run."""
    figure, axes = panel(HEIGHT, x, y, legend, emulated=emulated)
    for run in runs:
        rings = {"marker": "o", "linestyle": "", "mfc": COLOURS["bg"], "markersize": 6}
        few = {"marker": "o", "markersize": 4} if len(run.xs) <= _FEW else {}
        style = rings if run.rings else {"linewidth": 1.3, "linestyle": run.line, **few}
        (artist,) = axes.plot(run.xs, run.ys, color=COLOURS[run.colour], **style)
        mark(artist, run.title, run.key)
    return figure
