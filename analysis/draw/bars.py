"""Horizontal bars: plain, stacked and floating (waterfalls), one row for each name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul

from matplotlib.figure import Figure

from analysis.draw.style import (
    COLOURS,
    WIDTH,
    Axis,
    LegendItem,
    errors,
    mark,
    panel,
    styled,
    text_width,
)
from analysis.stats.estimates import Estimate

_ROW = 27.0


@dataclass(frozen=True)
class Segment:
    """A bar, or one segment of it, from `start` to `end` in units of the axis."""

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


@dataclass(frozen=True)
class Row:
    """One row of bars; a row without segments is a heading."""

    name: str
    segments: Sequence[Segment] = ()
    text: str = ""
    """Value after the bar."""


@styled
def bars(rows: Sequence[Row], x: Axis, legend: Sequence[LegendItem] = (), *, emulated: bool) -> Figure:
    """Horizontal bars, first row on top; the axis is made long enough for the text after each bar."""
    names = [row.name if row.segments else "" for row in rows]
    left = min(max(52.0, *map(text_width, names)) + 8, WIDTH * 0.4)
    width = WIDTH - left - 14
    ends = [max([0.0, *(each.tip for each in row.segments)]) for row in rows]
    room = [width / max(width - text_width(row.text) - 8, width / 2) for row in rows]
    y = Axis("", len(rows) - 0.5, -0.5, ticks=range(len(rows)), form=lambda at, _: names[round(at)])
    whole = replace(x, high=max([x.high, *map(mul, ends, room)]))
    figure, axes = panel(_ROW * len(rows), whole, y, legend, left=left, emulated=emulated)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.axvline(0, color=COLOURS["faint"], linewidth=1)
    for at, row in enumerate(rows):
        for each in row.segments:
            style = {"color": COLOURS[each.colour], "edgecolor": COLOURS["bg"], "linewidth": 0.6}
            (bar,) = axes.barh(at, each.end - each.start, 0.7, each.start, **style)
            mark(bar, each.title)
            if each.estimate:
                axes.errorbar(each.end, at, xerr=errors(each.estimate), fmt="none", ecolor=COLOURS["ink"])
        text, place = (row.text, (ends[at], at)) if row.segments else (row.name, (x.low, at))
        axes.annotate(text, place, (5, 0), textcoords="offset points", va="center")
    return figure
