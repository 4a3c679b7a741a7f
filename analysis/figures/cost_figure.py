"""PNG twin of the figure of cost against time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.figures.style import CURVE_COLOURS, WIDTH_IN, mark_emulated, styled
from analysis.stats.estimates import Estimate


class CostPoint(NamedTuple):
    """One measured size of a configuration."""

    curve: str
    """Name of the configuration."""
    size: str
    """As a text: `4 nodes`."""
    time: float
    """Time of the training, in the unit of the figure's axis."""
    cost: Estimate
    best: bool
    """Whether no size is faster and cheaper."""


@styled
def cost_figure(shown: Sequence[CostPoint], time_label: str, label: str, *, emulated: bool) -> Figure:
    """Cost by time of a training, with its interval; hollow points are not the best for their time.

    Args:
        time_label: of the horizontal axis, with its unit.
        label: of the vertical axis, with its unit.
        emulated: whether a run is emulated, which the figure then says.
    """
    figure = Figure((WIDTH_IN, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for at, curve in enumerate(dict.fromkeys(each.curve for each in shown)):
        colour, own = CURVE_COLOURS[at % len(CURVE_COLOURS)], [each for each in shown if each.curve == curve]
        axes.plot([each.time for each in own], [each.cost.value for each in own], color=colour, label=curve)
        for each in own:
            fill = colour if each.best else "white"
            axes.plot(each.time, each.cost.value, "o", markersize=5, color=colour, markerfacecolor=fill)
            low, high = each.cost.low, each.cost.high
            if each.cost.basis == "repeats" and low is not None and high is not None:
                axes.plot([each.time] * 2, [low, high], color=colour, linewidth=1.2)
            place = (each.time, each.cost.value)
            axes.annotate(each.size, place, (0, 6), textcoords="offset points", ha="center", va="bottom")
    axes.set_xlim(0, 1.1 * max(each.time for each in shown))
    axes.set_ylim(0, 1.15 * max(each.cost.high or each.cost.value for each in shown))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(time_label)
    axes.set_ylabel(label)
    if len({each.curve for each in shown}) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    if emulated:
        mark_emulated(figure)
    return figure
