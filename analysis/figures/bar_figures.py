"""PNG twins of bar charts: the rows of `analysis.svg.bars` drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figures.style import CLASS_COLOURS, FAINT, INK, WIDTH_IN, mark_emulated, styled
from analysis.svg.bars import Row
from analysis.svg.plot import LegendItem
from analysis.svg.scales import Axis


@styled
def bar_figure(
    rows: Sequence[Row], x: Axis, legend: Sequence[LegendItem] = (), *, emulated: bool = False
) -> Figure:
    """Horizontal bars, first row on top; rows without segments are headings. Colours are CSS classes."""
    figure = Figure((WIDTH_IN, 1.0 + 0.29 * len(rows) + 0.2 * (-(-len(legend) // 3))), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        for segment in row.segments:
            colour = CLASS_COLOURS.get(segment.colour, FAINT)
            low, high = sorted((segment.start, segment.end))
            axes.barh(place, high - low, 0.7, left=low, color=colour, edgecolor="white", linewidth=0.6)
            estimate = segment.estimate
            if estimate is not None and estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low, estimate.high], [place, place], color=INK, linewidth=1.2)
        end = max((max(each.start, each.end) for each in row.segments), default=x.low)
        if row.segments:
            axes.annotate(row.text, (end, place), (4, 0), textcoords="offset points", va="center")
        else:
            axes.annotate(row.name, (x.low, place), (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [row.name if row.segments else "" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(x.low, x.high)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(x.label)
    if legend:
        patches = [Patch(color=CLASS_COLOURS.get(each.colour, FAINT), label=each.label) for each in legend]
        figure.legend(handles=patches, loc="outside lower center", ncols=min(3, len(legend)))
    if emulated:
        mark_emulated(figure)
    return figure
