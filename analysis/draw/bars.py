"""Horizontal bars: plain, stacked and floating (waterfalls), one row for each name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from analysis.draw.points import has_interval
from analysis.draw.style import (
    COLOURS,
    WIDTH,
    Axis,
    LegendItem,
    figure_of,
    mark,
    panel,
    shortened,
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
    """Of the end of the segment, where its interval is drawn."""


@dataclass(frozen=True)
class Row:
    """One row of bars; a row without segments is a heading."""

    name: str
    segments: Sequence[Segment] = ()
    text: str = ""
    """Value after the bar."""

    @property
    def end(self) -> float:
        ends = [max(each.start, each.end) for each in self.segments]
        intervals = [each.estimate for each in self.segments if each.estimate and has_interval(each.estimate)]
        return max([*ends, *(each.high or 0.0 for each in intervals)], default=0.0)


def stacked(parts: Sequence[tuple[float, str, str]]) -> list[Segment]:
    """Segments one after the other, from (length, colour, title); lengths of zero are left out."""
    segments, at = [], 0.0
    for length, colour, title in parts:
        if length > 0:
            segments.append(Segment(at, at + length, colour, title))
            at += length
    return segments


@styled
def bars(rows: Sequence[Row], x: Axis, legend: Sequence[LegendItem] = (), *, emulated: bool) -> Figure:
    """Horizontal bars, first row on top; the axis is made long enough for the text after each bar."""
    names = [text_width(row.name) for row in rows if row.segments]
    left = min(max(40.0, *names) + 12, WIDTH * 0.36)
    width = WIDTH - left - 14
    for row in rows:
        room = max(width - text_width(row.text) - 8, width / 2)
        x = replace(x, high=max(x.high, row.end * width / room))
    axes = panel(
        _ROW * len(rows), x, Axis("", len(rows) - 0.5, -0.5, ticks=()), legend, left=left, emulated=emulated
    )
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.axvline(0, color=COLOURS["faint"], linewidth=1)
    offset: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for at, row in enumerate(rows):
        for each in row.segments:
            low, length = min(each.start, each.end), abs(each.end - each.start)
            colours: dict[str, Any] = {"color": COLOURS[each.colour], "edgecolor": COLOURS["bg"]}
            (bar,) = axes.barh(at, length, 0.7, low, linewidth=0.6, **colours)
            mark(bar, each.title)
            if each.estimate and has_interval(each.estimate):
                ends = [each.estimate.low or 0.0, each.estimate.high or 0.0]
                axes.plot(ends, [at, at], "|-", color=COLOURS["ink"], linewidth=1.5, markersize=8)
        if row.segments:
            name = shortened(row.name, left - 8)
            axes.annotate(name, (0, at), (-8, 0), xycoords=axes.get_yaxis_transform(), ha="right", **offset)
            axes.annotate(row.text, (row.end, at), (5, 0), **offset)
        else:
            name = shortened(row.name, WIDTH - 4)
            place = (2 - left, 0)
            axes.annotate(name, (0, at), place, xycoords=axes.get_yaxis_transform(), weight="bold", **offset)
    return figure_of(axes)
