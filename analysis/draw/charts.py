"""The kinds of figures: points with intervals and lines over two axes, bars, histograms, a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from matplotlib.typing import LineStyleType

from analysis.draw.style import (
    COLOURS,
    MARKERS,
    WIDTH,
    Axis,
    LegendItem,
    curve_colour,
    errors,
    mark,
    panel,
    styled,
    text_width,
)
from analysis.stats.estimates import Estimate, Floats
from analysis.units import Unit, scale

HEIGHT = 220.0
"""Of a plot of points or lines, without the margins."""
_FEW = 12
"""Values of a line up to which each has a marker."""
_BESIDE = 5 / 72
"""Inches between the points of two curves at one place."""
_BAR, _HISTOGRAM = 27.0, 62.0
"""Heights of a row."""
_HIGHEST = 0.62
"""Height of the highest bar of a histogram as a share of its row; the texts stand above it."""
_BINS = 48
_PALEST = 0.1
"""Share of the strongest colour below which a cell of a heat map has none."""


class Dot(NamedTuple):
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
    dashed: bool = False
    """Whether the line to it is dashed, as to a point that was not measured."""


class Line(NamedTuple):
    """Values by step of one run; a value that is not finite leaves a gap."""

    xs: Sequence[float] | Floats
    ys: Sequence[float] | Floats
    colour: str
    title: str
    key: str
    line: LineStyleType = "-"
    rings: bool = False
    """Rings in place of a line."""


class Guide(NamedTuple):
    """A dashed line between two points, as the ideal; one entry in the legend for each label."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    label: str = "ideal"
    line: LineStyleType = "--"


class Segment(NamedTuple):
    """A bar, or one segment of it, from `start` to `end`."""

    start: float
    end: float
    colour: str
    title: str
    estimate: Estimate | None = None
    """Of the length of the segment, whose interval is drawn."""

    @property
    def tip(self) -> float:
        """The highest end of the bar and its interval."""
        bar = self.estimate and errors(self.estimate)
        return max(self.start, self.end + (bar[1][0] if bar else 0.0))


class Row(NamedTuple):
    """One row of bars; a row without segments is a heading."""

    name: str
    segments: Sequence[Segment] = ()
    text: str = ""
    """Value after the bar."""


class Distribution(NamedTuple):
    """One row of histograms."""

    name: str
    text: str
    """At the right end of the row."""
    values: Floats
    colour: str


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
    entries = [*(legend if len(curves) > 1 else []), *ideal.values()]
    figure, axes = panel(HEIGHT, x, y, entries, emulated=emulated)
    if band:
        axes.axhspan(*band, color=COLOURS["faint"], alpha=0.18, linewidth=0)
    for guide in guides:
        ys = np.clip(guide.ys, y.low, y.high)
        axes.plot(guide.xs, ys, color=COLOURS["faint"], linewidth=1.2, linestyle=guide.line)
    for at, (label, own) in enumerate(curves.items()):
        colour, marker = COLOURS[curve_colour(at)], MARKERS[at % len(MARKERS)]
        beside = ScaledTranslation(_BESIDE * (at - (len(curves) - 1) / 2), 0, figure.dpi_scale_trans)
        place: dict[str, Any] = {"color": colour, "transform": axes.transData + beside}
        joined = {dot.x: dot.estimate.value for dot in own if not dot.dashed}
        dashed = dict([*joined.items()][-1:]) | {dot.x: dot.estimate.value for dot in own if dot.dashed}
        for line_style, part in (("-", joined), ("--", dashed))[: 1 + any(dot.dashed for dot in own)]:
            (line,) = axes.plot([*part], [*part.values()], alpha=0.4, linestyle=line_style, **place)
            mark(line, key=label)
        for dot in own:
            value, bar = dot.estimate.value, errors(dot.estimate)
            place |= {"mfc": colour if bar else COLOURS["bg"], "alpha": 0.4 if dot.pale else None}
            point, _, _ = axes.errorbar(dot.x, value, bar, fmt=marker, markersize=7, **place)
            mark(point, dot.title, label)
            below, above = bar or ([0.0], [0.0])
            for beyond, limit, arrow in (
                (value - below[0] < y.low, y.low, "v"),
                (value + above[0] > y.high, y.high, "^"),
            ):
                if beyond:
                    axes.plot(dot.x, limit, arrow, markersize=8, clip_on=False, **place)
            axes.annotate(dot.text, (dot.x, value), (0, 7), textcoords="offset points", ha="center")
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


@styled
def bars(
    rows: Sequence[Row], axis: str, unit: Unit, legend: Sequence[LegendItem] = (), *, emulated: bool
) -> Figure:
    """Horizontal bars, first row on top, of values in `unit`; the axis is made long enough for the text after
    each bar. `axis` is what is measured."""
    names = [row.name if row.segments else "" for row in rows]
    left = min(max(52.0, *map(text_width, names)) + 8, WIDTH * 0.4)
    width = WIDTH - left - 14
    size, suffix = scale(unit, max(each.end for row in rows for each in row.segments))
    ends = [max([0.0, *(each.tip / size for each in row.segments)]) for row in rows]
    room = [width / max(width - text_width(row.text) - 8, width / 2) for row in rows]
    x = Axis(f"{axis} ({suffix.strip()})", 0.0, max(map(mul, ends, room)))
    y = Axis("", len(rows) - 0.5, -0.5, ticks=range(len(rows)), form=lambda at, _: names[round(at)])
    figure, axes = panel(_BAR * len(rows), x, y, legend, left=left, emulated=emulated)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.axvline(0, color=COLOURS["faint"], linewidth=1)
    for at, row in enumerate(rows):
        for each in row.segments:
            style = {"color": COLOURS[each.colour], "edgecolor": COLOURS["bg"], "linewidth": 0.6}
            length, end = (each.end - each.start) / size, each.end / size
            (bar,) = axes.barh(at, length, 0.7, each.start / size, **style)
            mark(bar, each.title)
            if each.estimate:
                error = errors(each.estimate.scaled(1 / size))
                axes.errorbar(end, at, xerr=error, fmt="none", ecolor=COLOURS["ink"])
        text, place = (row.text, (ends[at], at)) if row.segments else (row.name, (0.0, at))
        axes.annotate(text, place, (5, 0), textcoords="offset points", va="center")
    return figure


@styled
def histograms(rows: Sequence[Distribution], x: Axis, *, emulated: bool) -> Figure:
    """A histogram for each row; the last bar also counts values beyond the axis."""
    y = Axis("", len(rows), 0, ticks=())
    figure, axes = panel(_HISTOGRAM * len(rows), x, y, left=8.0, emulated=emulated)
    axes.grid(visible=False)
    edges = np.linspace(x.low, x.high, _BINS + 1)
    ends = axes.get_yaxis_transform()
    for at, row in enumerate(rows):
        counts, _ = np.histogram(np.clip(row.values, x.low, x.high), edges)
        top = at + 1 - _HIGHEST * counts / max(counts.max(), 1)
        shape = axes.stairs(top, edges, baseline=at + 1, fill=True, color=COLOURS[row.colour])
        mark(shape, f"{row.name}: {row.text}")
        axes.axhline(at + 1, color=COLOURS["faint"], linewidth=1)
        axes.text(0, at + 0.28, row.name, transform=ends, weight="bold")
        axes.text(1, at + 0.28, row.text, transform=ends, ha="right", color=COLOURS["faint"])
    return figure


@styled
def heat_map(
    values: Floats,
    rows: Sequence[str],
    x: Axis,
    strongest: tuple[float, str],
    *,
    titles: Sequence[str],
    emulated: bool,
) -> Figure:
    """A cell for each value above 0 [ranks, columns], first rank on top; NaN leaves a gap. Cells are thick
    lines, as an image would keep its colours in dark mode.

    Args:
        rows: name of each rank.
        x: axis of the columns, from the start of the first to the end of the last.
        strongest: least value with the strongest colour, and its text.
        titles: tooltip of each rank.
    """
    y = Axis("rank", len(rows) - 0.5, -0.5, ticks=range(len(rows)), form=lambda at, _: rows[round(at)])
    thickness = max(6.0, min(18.0, 420.0 / len(rows)))
    legend = [LegendItem(f"{strongest[1]} or more", "heat")]
    left = max(map(text_width, rows)) + 14
    figure, axes = panel(thickness * len(rows), x, y, legend, left=left, emulated=emulated)
    axes.grid(visible=False)
    shades, edges = np.minimum(values / strongest[0], 1.0), np.linspace(x.low, x.high, values.shape[1] + 1)
    ranks, columns = np.nonzero(shades > _PALEST)
    if ranks.size:
        first, end, shade = edges[columns], edges[columns + 1], shades[ranks, columns]
        axes.hlines(ranks, first, end, COLOURS["heat"], alpha=shade, linewidth=0.94 * thickness)
    for at, title in enumerate(titles):
        mark(axes.axhspan(at - 0.5, at + 0.5, color=COLOURS["bg"], alpha=0), title)
    return figure
