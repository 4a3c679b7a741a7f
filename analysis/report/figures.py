"""Figures of a report, each with a title and one line on how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, utilization
from analysis.efficiency import Curve
from analysis.report.model import FigureSpec
from analysis.runs import step_records, training_curves

FIGURES = (
    FigureSpec(
        file="scaling.png",
        title="Throughput",
        reading="Higher is faster. The dashed line is the base times the size; bars are 95 % intervals over "
        "repeats; pale lines guide the eye.",
        alt="Throughput by size, with the ideal line",
    ),
    FigureSpec(
        file="efficiency.png",
        title="Efficiency",
        reading="Share of the ideal throughput at each size. The axis starts at zero.",
        alt="Efficiency by size",
    ),
    FigureSpec(
        file="composition.png",
        title="Step time by phase",
        reading="Each bar is the mean step, divided into phases without gap or overlap. Phases that grow "
        "with the size are the cost of scaling.",
        alt="Mean step time by phase, one bar for each size",
    ),
    FigureSpec(
        file="training.png",
        title="Training",
        reading="Lower is better. One line for each run, rings are validation. With one seed and one global "
        "batch, the lines of all sizes should coincide.",
        alt="Loss by optimizer step",
    ),
    FigureSpec(
        file="gradient_norm.png",
        title="Gradient norm",
        reading="L2 norm of the gradients of the global batch before clipping, on a logarithmic axis. One "
        "line for each run; a gap is a step whose norm was not finite.",
        alt="Gradient norm by optimizer step",
    ),
    FigureSpec(
        file="latency.png",
        title="Step latency",
        reading="Durations of single steps on rank 0, all repeats pooled. The last bar also counts steps "
        "beyond the right edge.",
        alt="Histogram of step durations, one row for each size",
    ),
    FigureSpec(
        file="utilization.png",
        title="Utilization on rank 0",
        reading="Share of time in which a kernel ran on rank 0's GPU or, on a CPU, the number of processors "
        "that its process kept busy. One line for each run, from the samples within its steps.",
        alt="Utilization of rank 0's GPU or processors by optimizer step",
    ),
)

FILES = tuple(spec.file for spec in FIGURES)


def draw(table: pd.DataFrame, curves: Sequence[Curve], out: Path) -> list[FigureSpec]:
    """Draw each figure that has data into `out`, and remove the figures of an earlier report."""
    for file in FILES:
        (out / file).unlink(missing_ok=True)
    if not curves:
        return []
    drawn = []
    for spec in FIGURES:
        figure = _DRAWERS[spec.file](table, curves)
        if figure is not None:
            plots.save(figure, out / spec.file)
            drawn.append(spec)
    return drawn


def _composition(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    known = any(any(point.composition.values()) for curve in curves for point in curve.points)
    return plots.composition_figure(curves) if known else None


def _efficiency(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    compared = any(curve.base is not None and len(curve.points) > 1 for curve in curves)
    return plots.efficiency_figure(curves) if compared else None


def _training(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    losses = training_curves.losses(table)
    if losses["loss"].isna().all():
        return None
    entropies = table.loc[table["included"], "unigram_entropy_bits"].dropna().unique()
    return plots.training_figure(curves, losses, float(entropies[0]) if len(entropies) == 1 else None)


def _gradient_norm(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    norms = training_curves.gradient_norms(table)
    return plots.gradient_norm_figure(curves, norms) if (norms["grad_norm"] > 0).any() else None


def _latency(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    times = step_records.step_times_s(table)
    return plots.latency_figure(curves, times) if any(each.size for each in times.values()) else None


def _utilization(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    found = utilization.by_step(table)
    return None if found.empty else plots.utilization_figure(curves, found)


_DRAWERS: dict[str, Callable[[pd.DataFrame, Sequence[Curve]], Figure | None]] = {
    "scaling.png": lambda table, curves: plots.scaling_figure(curves),
    "efficiency.png": _efficiency,
    "composition.png": _composition,
    "training.png": _training,
    "gradient_norm.png": _gradient_norm,
    "latency.png": _latency,
    "utilization.png": _utilization,
}
