"""PNG twins of the figures by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis.figures.style import CURVE_COLOURS, MARKERS, WIDTH_IN, mark_emulated, styled
from analysis.stats.estimates import Estimate


@styled
def batch_figure(
    lines: Mapping[str, Sequence[tuple[int, Estimate]]], label: str, *, emulated: bool = False
) -> Figure:
    """Estimates by batch size of a rank, with their intervals over repeats.

    Args:
        lines: batch size and estimate of each point, smallest batch first, by the name of the line.
        label: of the vertical axis, with its unit.
        emulated: whether a run is emulated, which the figure then says.
    """
    figure = Figure((WIDTH_IN, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, found) in enumerate(lines.items()):
        colour, marker = CURVE_COLOURS[index % len(CURVE_COLOURS)], MARKERS[index % len(MARKERS)]
        sizes, values = [batch for batch, _ in found], [each.value for _, each in found]
        axes.plot(sizes, values, color=colour, alpha=0.35)
        axes.plot(sizes, values, marker=marker, linestyle="", markersize=5, color=colour, label=name)
        for batch, each in found:
            if each.basis == "repeats" and each.low is not None and each.high is not None:
                axes.plot([batch, batch], [each.low, each.high], color=colour, linewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(
        FixedLocator(sorted({batch for found in lines.values() for batch, _ in found}))
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size of a rank")
    axes.set_ylabel(label)
    figure.legend(loc="outside lower center", ncols=3)
    if emulated:
        mark_emulated(figure)
    return figure
