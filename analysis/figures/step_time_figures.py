"""PNG twins of the figures of the distribution of step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.figures.curve_drawing import (
    add_legend,
    coloured_points,
    drawn_for_curves,
    new_axes,
    short_label,
)
from analysis.figures.style import DASHES, FAINT, ONE_COLUMN, WIDTH_IN
from analysis.read.step_records import RunId
from analysis.units import plural, seconds, time_scale


@drawn_for_curves
def latency_figure(curves: Sequence[Curve], step_times_s: Mapping[RunId, NDArray[np.float64]]) -> Figure:
    """Distribution of step durations in seconds, all repeats pooled; one row for each curve and size.

    The last bar also counts steps beyond the right edge, so that rare slow steps do not compress the others.
    """
    rows = []
    for curve, point, colour in coloured_points(curves):
        pooled = _pooled(curve, point, step_times_s)
        size = plural(point.size, curve.unit)
        if pooled.size:
            rows.append((size if len(curves) == 1 else f"{short_label(curve.label)}\n{size}", colour, pooled))
    columns = 1 if len(rows) <= ONE_COLUMN else 2
    height = max(-(-len(rows) // columns), 1)
    figure = Figure(
        (columns * WIDTH_IN, 0.6 + (0.78 if len(curves) == 1 else 0.92) * height), layout="constrained"
    )
    if not rows:
        return figure
    edge = min(
        1.25 * max(np.percentile(times, 99) for *_, times in rows),
        1.02 * max(times.max() for *_, times in rows),
    )
    factor, unit = time_scale(edge)
    start = 0.9 * min(float(times.min()) for *_, times in rows)
    bins = np.linspace(start * factor, edge * factor, 61)
    grid = figure.subplots(height, columns, sharex=True, squeeze=False).T.ravel()
    for axes in grid[len(rows) :]:
        axes.axis("off")
    for axes, (label, colour, times) in zip(grid, rows, strict=False):
        axes.hist(np.clip(times * factor, bins[0], bins[-1]), bins, color=colour)
        p50, p95, p99 = np.percentile(times, [50, 95, 99])
        quantiles = (
            f"median {seconds(p50)} · p95 {seconds(p95)} · p99 {seconds(p99)} · max {seconds(times.max())}"
        )
        axes.set_title(label, loc="left", fontsize=9.2, pad=3)
        axes.set_title(quantiles, loc="right", fontsize=8.2, pad=3, color=FAINT)
        axes.yaxis.set_major_locator(NullLocator())
        axes.spines["left"].set_visible(False)
    for axes in {grid[height - 1], grid[len(rows) - 1]}:
        axes.set_xlim(bins[0], bins[-1])
        axes.set_xlabel(f"duration of a step ({unit})")
    return figure


@drawn_for_curves
def ecdf_figure(curves: Sequence[Curve], step_times_s: Mapping[RunId, NDArray[np.float64]]) -> Figure:
    """Share of steps up to each duration in seconds, all repeats pooled; one line for each curve and size."""
    figure, axes = new_axes(3.0)
    sizes = sorted({point.size for curve in curves for point in curve.points})
    for curve, point, colour in coloured_points(curves):
        if (times := np.sort(_pooled(curve, point, step_times_s))).size:
            size = plural(point.size, curve.unit)
            label = size if len(curves) == 1 else f"{short_label(curve.label)}, {size}"
            dashes = DASHES[sizes.index(point.size) % len(DASHES)] if len(curves) > 1 else ()
            line = (0, tuple(length / 2 for length in dashes)) if dashes else "-"
            shares = np.arange(1, times.size + 1) / times.size
            axes.step(times, shares, color=colour, linestyle=line, label=label)
    axes.set_xlabel("duration of a step (s)")
    axes.set_ylabel("share of steps")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    add_legend(figure, axes)
    return figure


def _pooled(
    curve: Curve, point: Point, step_times_s: Mapping[RunId, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Step times of all repeats of a point."""
    found = [times for run in point.runs if (times := step_times_s.get((curve.sweep, run))) is not None]
    return np.concatenate(found) if found else np.empty(0)
