"""PNG twins of the figures of throughput and efficiency by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from analysis.efficiency import Curve
from analysis.figures.curve_drawing import (
    add_legend,
    axis_from_zero,
    drawn_for_curves,
    new_axes,
    short_label,
)
from analysis.figures.style import CURVE_COLOURS, FAINT, MARKERS
from analysis.stats.estimates import Estimate


@drawn_for_curves
def scaling_figure(curves: Sequence[Curve]) -> Figure:
    """Throughput by size: points with intervals, and the ideal line from each base."""
    figure, axes = new_axes(3.5)
    highest = 0.0
    label: str | None = "ideal: base \N{MULTIPLICATION SIGN} size"
    for index, curve in enumerate(curves):
        sizes = [point.size for point in curve.points]
        if curve.base is not None and len(sizes) > 1:
            rate = curve.base.samples_per_s.value / curve.base.size
            ideal = [rate * size for size in sizes]
            highest = max(highest, *ideal)
            axes.plot(sizes, ideal, color=FAINT, linewidth=0.9, dashes=(5, 3), zorder=1.5, label=label)
            label = None  # one entry in the legend
        estimates = [point.samples_per_s for point in curve.points]
        _points(axes, curve, estimates, index, len(curves))
        highest = max([highest, *(estimate.value for estimate in estimates)])
    _size_axis(axes, curves)
    sizes = _sizes(curves)
    if sizes[-1] > 8 * sizes[0]:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    else:
        axis_from_zero(axes, highest)
    axes.set_ylabel("throughput (samples/s)")
    add_legend(figure, axes)
    return figure


@drawn_for_curves
def efficiency_figure(curves: Sequence[Curve]) -> Figure:
    """Efficiency by size with intervals, on an axis from zero."""
    figure, axes = new_axes(3.5)
    highest = 1.0
    axes.axhline(1, color=FAINT, linewidth=0.9, dashes=(5, 3), zorder=1.5, label="ideal")
    for index, curve in enumerate(curves):
        estimates = [point.efficiency for point in curve.points if point.efficiency is not None]
        if curve.base is not None:
            _points(axes, curve, estimates, index, len(curves))
            highest = max([highest, *(estimate.value for estimate in estimates)])
    _size_axis(axes, curves)
    axis_from_zero(axes, highest)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_ylabel("efficiency (share of ideal)")
    add_legend(figure, axes)
    return figure


def _points(axes: Axes, curve: Curve, estimates: Sequence[Estimate], index: int, curves: int) -> None:
    """Markers with intervals if known, joined by a pale line that guides the eye."""
    sizes = [point.size for point in curve.points]
    colour = CURVE_COLOURS[index % len(CURVE_COLOURS)]
    values = np.array([estimate.value for estimate in estimates])
    between = [e if e.basis == "repeats" else replace(e, low=None, high=None) for e in estimates]
    low = np.array([value - (e.low or value) for value, e in zip(values, between, strict=True)])
    high = np.array([(e.high or value) - value for value, e in zip(values, between, strict=True)])
    axes.plot(sizes, values, color=colour, alpha=0.35, zorder=2)
    style: dict[str, Any] = {
        "capsize": 3,
        "elinewidth": 1.2,
        "markersize": 5,
        "linestyle": "none",
        "zorder": 3,
    }
    marker = MARKERS[index % len(MARKERS)]
    label = "measured" if curves == 1 else short_label(curve.label)
    axes.errorbar(sizes, values, [low, high], color=colour, marker=marker, label=label, **style)


def _sizes(curves: Sequence[Curve]) -> list[int]:
    return sorted({point.size for curve in curves for point in curve.points})


def _size_axis(axes: Axes, curves: Sequence[Curve]) -> None:
    sizes = _sizes(curves)
    if len(sizes) > 1:
        if sizes[-1] > 8 * sizes[0]:
            axes.set_xscale("log", base=2)
        else:
            axes.set_xlim(0 if sizes[0] <= 2 else None, sizes[-1] * 1.06)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    units = {curve.unit for curve in curves}
    axes.set_xlabel("nodes" if units == {"node"} else "ranks" if units == {"rank"} else "nodes or ranks")
