"""Points with intervals, and lines, over two axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.draw.style import (
    COLOURS,
    MARKERS,
    Axis,
    LegendItem,
    curve_colour,
    figure_of,
    linestyle,
    mark,
    panel,
    styled,
)
from analysis.stats.estimates import Estimate, Floats

HEIGHT = 220.0
"""Of the plot, without the margins."""


@dataclass(frozen=True)
class Points:
    """Estimates of one curve; the tooltip of each is in `titles`."""

    label: str
    xs: Sequence[float]
    estimates: Sequence[Estimate]
    titles: Sequence[str]
    joined: bool = True
    """By a pale line that guides the eye."""
    texts: Sequence[str] = ()
    """Beside the points."""
    pale: Collection[int] = ()
    """Indices of points that stand back."""


@dataclass(frozen=True)
class Line:
    """Values by step of one run; a value that is not finite leaves a gap."""

    xs: Sequence[float] | Floats
    ys: Sequence[float] | Floats
    colour: str
    title: str
    key: str
    dashes: Sequence[float] = ()
    rings: bool = False
    """Rings in place of a line."""


@dataclass(frozen=True)
class Guide:
    """A dashed line between two points, as the ideal; one entry in the legend for each label."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    label: str = "ideal"
    dashes: tuple[float, float] = (6, 4)


@styled
def points(
    curves: Sequence[Points],
    x: Axis,
    y: Axis,
    guides: Sequence[Guide] = (),
    *,
    band: tuple[float, float] | None = None,
    emulated: bool,
) -> Figure:
    """Points of each curve; a point without an interval is hollow, and an interval that
    leaves the vertical axis ends in an arrow.

    Args:
        band: range of the vertical axis with a pale ground.
    """
    several = len(curves) > 1
    legend = [LegendItem(each.label, curve_colour(at), key=each.label) for at, each in enumerate(curves)]
    ideal = [LegendItem(*each) for each in dict.fromkeys((g.label, "faint", True, g.dashes) for g in guides)]
    shown = (legend if several else []) + [item for item in ideal if item.label]
    axes = panel(HEIGHT, x, y, shown, emulated=emulated)
    if band:
        axes.axhspan(*band, color=COLOURS["faint"], alpha=0.18, linewidth=0)
    for guide in guides:
        dashes = [length / 1.2 for length in guide.dashes]
        axes.plot(guide.xs, guide.ys, color=COLOURS["faint"], linewidth=1.2, dashes=dashes)
    for at, each in enumerate(curves):
        _curve(axes, each, COLOURS[curve_colour(at)], MARKERS[at % len(MARKERS)])
    return figure_of(axes)


@styled
def lines(runs: Sequence[Line], x: Axis, y: Axis, legend: Sequence[LegendItem], *, emulated: bool) -> Figure:
    """A line for each run."""
    axes = panel(HEIGHT, x, y, legend, emulated=emulated)
    for each in runs:
        colour = COLOURS[each.colour]
        if each.rings:
            (artist,) = axes.plot(each.xs, each.ys, "o", color=colour, mfc=COLOURS["bg"], markersize=6)
        else:
            style = {"linewidth": 1.3, "linestyle": linestyle(each.dashes)}
            (artist,) = axes.plot(each.xs, each.ys, color=colour, **style)
        mark(artist, each.title, each.key)
    return figure_of(axes)


def has_interval(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.high is not None


def _curve(axes: Axes, curve: Points, colour: str, marker: str) -> None:
    values = [each.value for each in curve.estimates]
    if curve.joined:
        (line,) = axes.plot(curve.xs, values, color=colour, alpha=0.4)
        mark(line, key=curve.label)
    for at, (x, estimate, title) in enumerate(zip(curve.xs, curve.estimates, curve.titles, strict=True)):
        alpha = 0.4 if at in curve.pale else None
        known = has_interval(estimate)
        if known:
            _interval(axes, x, estimate, colour, alpha)
        fill = colour if known else COLOURS["bg"]
        (point,) = axes.plot(x, estimate.value, marker, color=colour, mfc=fill, markersize=7, alpha=alpha)
        mark(point, title, curve.label)
        if curve.texts:
            axes.annotate(
                curve.texts[at], (x, estimate.value), (0, 7), textcoords="offset points", ha="center"
            )


def _interval(axes: Axes, x: float, estimate: Estimate, colour: str, alpha: float | None) -> None:
    bottom, top = axes.get_ylim()
    low, high = estimate.low or bottom, estimate.high or top
    axes.plot([x, x], [max(low, bottom), min(high, top)], color=colour, alpha=alpha)
    for end, limit, beyond, arrow in ((low, bottom, low < bottom, "v"), (high, top, high > top, "^")):
        cap = arrow if beyond else "_"
        axes.plot(x, limit if beyond else end, cap, color=colour, markersize=8, alpha=alpha, clip_on=False)
