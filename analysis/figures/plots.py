"""Figures of the report: pure functions from data to matplotlib `Figure`s.

They do not use pyplot, so they change no global state and need no display. Their size is half a page.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.figures.style import (
    CURVE_COLOURS,
    DPI,
    FAINT,
    LINES,
    MARKERS,
    ONE_COLUMN,
    PHASE_COLOURS,
    PHASE_NAMES,
    WIDTH_IN,
    mark_emulated,
    styled,
)
from analysis.runs.step_records import RunId
from analysis.stats.estimates import Estimate
from analysis.units import plural, seconds, time_scale
from disttrain.records.json_files import write_bytes

P = ParamSpec("P")

_RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markerfacecolor": "white",
    "markersize": 5,
    "markeredgewidth": 1.2,
    "zorder": 3,
}
"""A validation point."""


def _drawn(
    draw: Callable[Concatenate[Sequence[Curve], P], Figure],
) -> Callable[Concatenate[Sequence[Curve], P], Figure]:
    """Draw in the style of `analysis.figures.style`, with a mark if a curve is emulated."""

    @functools.wraps(draw)
    def drawn(curves: Sequence[Curve], *args: P.args, **kwargs: P.kwargs) -> Figure:
        figure = styled(draw)(curves, *args, **kwargs)
        if any(curve.emulated for curve in curves):
            mark_emulated(figure)
        return figure

    return drawn


@_drawn
def scaling_figure(curves: Sequence[Curve]) -> Figure:
    """Throughput by size: points with intervals, and the ideal line from each base."""
    figure, axes = _new(3.5)
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
        _from_zero(axes, highest)
    axes.set_ylabel("throughput (samples/s)")
    _legend(figure, axes)
    return figure


@_drawn
def efficiency_figure(curves: Sequence[Curve]) -> Figure:
    """Efficiency by size with intervals, on an axis from zero."""
    figure, axes = _new(3.5)
    highest = 1.0
    axes.axhline(1, color=FAINT, linewidth=0.9, dashes=(5, 3), zorder=1.5, label="ideal")
    for index, curve in enumerate(curves):
        estimates = [point.efficiency for point in curve.points if point.efficiency is not None]
        if curve.base is not None:
            _points(axes, curve, estimates, index, len(curves))
            highest = max([highest, *(estimate.value for estimate in estimates)])
    _size_axis(axes, curves)
    _from_zero(axes, highest)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_ylabel("efficiency (share of ideal)")
    _legend(figure, axes)
    return figure


@_drawn
def composition_figure(curves: Sequence[Curve]) -> Figure:
    """Mean step time of each curve and size, divided into phases."""
    points = [point for curve in curves for point in curve.points]
    places = np.arange(len(points), dtype=np.float64)
    if len(curves) > 1:  # a free row above each curve's bars, for its name
        places += np.repeat(np.arange(1, len(curves) + 1), [len(curve.points) for curve in curves]) * 0.9
    figure, axes = _new(1.3 + 0.36 * (places[-1] + 1))
    totals = [sum(value or 0.0 for value in point.composition.values()) for point in points]
    factor, unit = time_scale(max(totals))
    left = np.zeros(len(points))
    for name, colour in PHASE_COLOURS.items():
        widths = np.array([(point.composition.get(name) or 0.0) * factor for point in points])
        if widths.any():
            edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
            axes.barh(places, widths, 0.74, left=left, color=colour, label=PHASE_NAMES[name], **edge)
            left += widths
    for place, total in zip(places, totals, strict=True):
        axes.annotate(
            seconds(total), (total * factor, place), (4, 0), textcoords="offset points", va="center"
        )
    if len(curves) > 1:
        firsts = np.cumsum([0, *(len(curve.points) for curve in curves)])[:-1]
        for curve, first in zip(curves, firsts, strict=True):
            name_at = (0, places[first] - 0.85)
            axes.annotate(_short(curve.label), name_at, (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [plural(point.size, curve.unit) for curve in curves for point in curve.points])
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, (max(totals) * factor or 1.0) * 1.16)
    axes.set_xlabel(f"mean time of a step ({unit})")
    _legend(figure, axes)
    return figure


@_drawn
def training_figure(
    curves: Sequence[Curve], losses: pd.DataFrame, entropy_bits: float | None = None
) -> Figure:
    """Loss by step: one line a run, rings for validation; `losses` is the result of `series.losses`.

    Lines of larger sizes are thinner, so that equal curves stay visible. `entropy_bits` is the unigram
    entropy of the corpus in bits per byte; it is drawn if losses have that scale.
    """
    figure, axes = _new(3.5)
    by_run = {key: frame for key, frame in losses.groupby(["sweep", "run"])}
    named = set()
    rows = _rows(curves)
    for number, (curve, point, colour) in enumerate(rows):
        label = plural(point.size, curve.unit) if len(curves) == 1 else _short(curve.label)
        width = 0.8 + 2.4 * (1 - (number + 1) / len(rows))
        for run in point.runs:
            frame = by_run.get((curve.sweep, run))
            if frame is None:
                continue
            train, valid = frame[frame["split"] == "train"], frame[frame["split"] == "valid"]
            name = None if label in named else label
            named.add(label)
            axes.plot(train["step"], train["loss"], color=colour, linewidth=width, alpha=0.85, label=name)
            axes.plot(valid["step"], valid["loss"], color=colour, **_RING)
    rated = losses[losses["bits_per_byte"] > 0]
    if entropy_bits is not None and not rated.empty:
        level = entropy_bits * float((rated["loss"] / rated["bits_per_byte"]).median())
        axes.axhline(level, color=FAINT, linewidth=0.9, dashes=(1.5, 2), label="_unigram")
        place: dict[str, Any] = {
            "xy": (1, level),
            "xycoords": axes.get_yaxis_transform(),
            "textcoords": "offset points",
        }
        axes.annotate(
            "byte frequencies alone", xytext=(-2, 3), ha="right", fontsize=8.8, color=FAINT, **place
        )
    if (losses["split"] == "valid").any():
        axes.plot([], [], color=FAINT, label="validation", **_RING)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.set_xlim(left=0)
    _legend(figure, axes)
    return figure


@_drawn
def gradient_norm_figure(curves: Sequence[Curve], norms: pd.DataFrame) -> Figure:
    """Gradient norm by step on a logarithmic axis, one line a run; `norms` is that of
    `series.gradient_norms`. A step whose norm is not finite is a gap."""
    figure, axes = _new(3.0)
    by_run = {key: frame for key, frame in norms.groupby(["sweep", "run"])}
    named = set()
    for curve, point, colour in _rows(curves):
        label = plural(point.size, curve.unit) if len(curves) == 1 else _short(curve.label)
        for run in point.runs:
            frame = by_run.get((curve.sweep, run))
            if frame is None:
                continue
            name = None if label in named else label
            named.add(label)
            axes.plot(frame["step"], frame["grad_norm"], color=colour, linewidth=1.2, alpha=0.85, label=name)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("gradient norm")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    _legend(figure, axes)
    return figure


@_drawn
def latency_figure(curves: Sequence[Curve], step_times_s: Mapping[RunId, NDArray[np.float64]]) -> Figure:
    """Distribution of step durations in seconds, all repeats pooled; one row for each curve and size.

    The last bar also counts steps beyond the right edge, so that rare slow steps do not compress the others.
    """
    rows = []
    for curve, point, colour in _rows(curves):
        found = [times for run in point.runs if (times := step_times_s.get((curve.sweep, run))) is not None]
        pooled = np.concatenate(found) if found else np.empty(0)
        size = plural(point.size, curve.unit)
        if pooled.size:
            rows.append((size if len(curves) == 1 else f"{_short(curve.label)}\n{size}", colour, pooled))
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


@_drawn
def ecdf_figure(curves: Sequence[Curve], step_times_s: Mapping[RunId, NDArray[np.float64]]) -> Figure:
    """Share of steps up to each duration in seconds, all repeats pooled; one line for each curve and size."""
    figure, axes = _new(3.0)
    for curve, point, colour in _rows(curves):
        found = [times for run in point.runs if (times := step_times_s.get((curve.sweep, run))) is not None]
        if found and (times := np.sort(np.concatenate(found))).size:
            size = plural(point.size, curve.unit)
            label = size if len(curves) == 1 else f"{_short(curve.label)}, {size}"
            line = "-" if len(curves) == 1 else LINES[curve.points.index(point) % len(LINES)]
            shares = np.arange(1, times.size + 1) / times.size
            axes.step(times, shares, color=colour, linestyle=line, label=label)
    axes.set_xlabel("duration of a step (s)")
    axes.set_ylabel("share of steps")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    _legend(figure, axes)
    return figure


@_drawn
def utilization_figure(curves: Sequence[Curve], found: pd.DataFrame) -> Figure:
    """Utilization of rank 0's GPU by step, or of its processors if no run has GPU samples; one line a run.

    `found` is the result of `utilization.by_step`.
    """
    figure, axes = _new(2.8)
    on_gpu = (found["device"] == "gpu").any()
    shown = found[found["device"] == ("gpu" if on_gpu else "processors")]
    by_run = {key: frame for key, frame in shown.groupby(["sweep", "run"])}
    named = set()
    for curve, point, colour in _rows(curves):
        label = plural(point.size, curve.unit) if len(curves) == 1 else _short(curve.label)
        for run in point.runs:
            if (frame := by_run.get((curve.sweep, run))) is not None:
                axes.plot(
                    frame["step"], frame["utilization"], color=colour, label=None if label in named else label
                )
                named.add(label)
    _from_zero(axes, max(shown["utilization"].max(), 1.0))
    if on_gpu:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("time with a running kernel" if on_gpu else "busy processors")
    axes.set_xlim(left=0)
    _legend(figure, axes)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG atomically."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
    write_bytes(path, image.getvalue())


def _new(height_in: float) -> tuple[Figure, Axes]:
    figure = Figure((WIDTH_IN, height_in), layout="constrained")
    return figure, figure.add_subplot()


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
    label = "measured" if curves == 1 else _short(curve.label)
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


def _from_zero(axes: Axes, highest: float) -> None:
    """Axis from zero with room for intervals; intervals far wider than the values are cut."""
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.06 * highest), 1.4 * highest))


def _legend(figure: Figure, axes: Axes) -> None:
    """Legend below the plot, so that long names fit and cover no data."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        longest = max(map(len, labels))
        columns = 1 if longest > 27 else 2 if longest > 15 else 3
        figure.set_figheight(figure.get_figheight() + 0.17 * (len(labels) // columns - 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _rows(curves: Sequence[Curve]) -> list[tuple[Curve, Point, str]]:
    """Points with colours: dark to light by size on a single curve, else one colour a curve."""
    if len(curves) == 1:
        shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.78, len(curves[0].points)))
        return [
            (curves[0], point, to_hex(shade)) for point, shade in zip(curves[0].points, shades, strict=True)
        ]
    colours = [CURVE_COLOURS[index % len(CURVE_COLOURS)] for index in range(len(curves))]
    return [(c, point, colour) for c, colour in zip(curves, colours, strict=True) for point in c.points]


def _short(label: str) -> str:
    return textwrap.shorten(label, 60, placeholder=" …") if " " in label else label[:60]
