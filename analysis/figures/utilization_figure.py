"""PNG twin of the figure of utilization by step."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.efficiency import Curve
from analysis.figures.curve_drawing import add_legend, axis_from_zero, drawn_for_curves, new_axes, run_lines


@drawn_for_curves
def utilization_figure(curves: Sequence[Curve], found: pd.DataFrame) -> Figure:
    """Utilization of rank 0's GPU by step, or of its processors if no run has GPU samples; one line a run.

    `found` is the result of `utilization.by_step`.
    """
    figure, axes = new_axes(2.8)
    on_gpu = (found["device"] == "gpu").any()
    shown = found[found["device"] == ("gpu" if on_gpu else "processors")]
    for frame, colour, label, _ in run_lines(curves, shown):
        axes.plot(frame["step"], frame["utilization"], color=colour, label=label)
    axis_from_zero(axes, max(shown["utilization"].max(), 1.0))
    if on_gpu:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("time with a running kernel" if on_gpu else "busy processors")
    axes.set_xlim(left=0)
    add_legend(figure, axes)
    return figure
