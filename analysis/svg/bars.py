"""Horizontal bars: plain, stacked and floating (waterfalls), one row for each name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.stats.estimates import Estimate
from analysis.svg.elements import element, mark, shortened, text, text_width
from analysis.svg.plot import HALF, LegendItem, Plot
from analysis.svg.scales import Axis

_SHARE = 0.7
"""Height of a bar as a share of its row."""
_GAP = 5.0
"""Distance of a text from its bar, and from the edge."""
_RIGHT = Plot.right


@dataclass(frozen=True)
class Segment:
    """A bar, or one segment of it, from `start` to `end` in units of the axis."""

    start: float
    end: float
    colour: str
    title: str
    key: str | None = None
    estimate: Estimate | None = None
    """Interval drawn at the end of the segment."""


@dataclass(frozen=True)
class Row:
    """One row of bars; a row without segments is a heading."""

    name: str
    segments: Sequence[Segment] = ()
    text: str = ""
    """Value after the bar."""


def stacked(parts: Sequence[tuple[float, str, str]], key: str | None = None) -> list[Segment]:
    """Segments one after the other, from (length, colour, title); lengths of zero are left out."""
    found, at = [], 0.0
    for length, colour, title in parts:
        if length > 0:
            found.append(Segment(at, at + length, colour, title, key))
            at += length
    return found


def bars(
    rows: Sequence[Row],
    x: Axis,
    *,
    name: str,
    title: str,
    description: str,
    legend: Sequence[LegendItem] = (),
    width: float = HALF,
    row_height: float = 27.0,
) -> str:
    """The `<svg>` of horizontal bars, first row on top; the axis leaves room for the texts after bars."""
    longest = max((text_width(row.name) for row in rows if row.segments), default=0.0)
    left = min(max(longest + 12, 40.0), width * 0.36)
    plot = Plot(
        name,
        title,
        description,
        _with_room(x, rows, left, width),
        Axis("", 0, 1),
        legend,
        width=width,
        left=left,
        grid="x",
        categories=True,
    )
    plot.height = plot.top + 12 + row_height * len(rows) + (44 if x.label else 26)
    for index, row in enumerate(rows):
        middle = plot.top + 10 + row_height * (index + 0.5)
        if not row.segments and not row.text:
            plot.add(text(shortened(row.name, width - 4), 2, middle + 5, class_="strong"))
            continue
        plot.add(text(shortened(row.name, left - 8), left - 8, middle + 4, class_="end"))
        plot.add(*(_segment(plot, segment, middle, row_height * _SHARE) for segment in row.segments))
        end = max((_last(segment) for segment in row.segments), default=x.low)
        at = plot.xs(end) + _GAP
        room = at + text_width(row.text) <= width
        plot.add(
            text(row.text, at if room else width - 2, middle + 4, class_="value" if room else "value end")
        )
        zero, half = plot.xs(max(0.0, x.low)), row_height / 2
        plot.add(element("line", x1=zero, x2=zero, y1=middle - half, y2=middle + half, class_="axis"))
    return plot.svg()


def _with_room(x: Axis, rows: Sequence[Row], left: float, width: float) -> Axis:
    """The linear axis, long enough for the text after each bar; longer texts than half of it do not count."""
    high = x.high
    for row in rows:
        room = width - left - text_width(row.text) - 2 * _GAP
        end = max((_last(segment) for segment in row.segments), default=x.low)
        if room > (width - left) / 2:
            high = max(high, x.low + (end - x.low) * (width - left - _RIGHT) / room)
    return replace(x, high=high)


def _segment(plot: Plot, segment: Segment, middle: float, height: float) -> str:
    low, high = sorted((plot.xs(segment.start), plot.xs(segment.end)))
    bar = mark(
        "rect",
        segment.title,
        segment.key,
        x=low,
        y=middle - height / 2,
        width=max(high - low, 0.6),
        height=height,
        class_=f"fill {segment.colour}",
    )
    estimate = segment.estimate
    if estimate is None or estimate.low is None or estimate.high is None:
        return bar
    start, end = plot.xs(estimate.low), plot.xs(estimate.high)
    whisker = (
        f"M{start:.1f} {middle:.1f}H{end:.1f}M{start:.1f} {middle - 4:.1f}v8M{end:.1f} {middle - 4:.1f}v8"
    )
    return bar + element("path", d=whisker, class_="stroke ink")


def _last(segment: Segment) -> float:
    high = segment.estimate.high if segment.estimate and segment.estimate.high is not None else segment.end
    return max(segment.start, segment.end, high)
