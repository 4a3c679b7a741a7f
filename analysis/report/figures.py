"""Which figures a report has, and the one line that says how to read each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, series, utilization
from analysis.efficiency import Curve
from analysis.report.model import Picture

PICTURES = (
    Picture(
        file="scaling.png",
        title="Throughput",
        reading="Higher is faster. The dashed line is the base times the size; bars are 95 % intervals over "
        "launches, and pale lines only guide the eye.",
        alt="Throughput over size, with the ideal line",
    ),
    Picture(
        file="efficiency.png",
        title="Efficiency",
        reading="How much of the ideal throughput is left at each size. The axis starts at zero, so heights "
        "compare.",
        alt="Efficiency over size",
    ),
    Picture(
        file="composition.png",
        title="Where the time of a step goes",
        reading="Each bar is the mean step, divided without gap or overlap. What grows with the size is what "
        "scaling costs.",
        alt="Mean step time divided into its parts, one bar a size",
    ),
    Picture(
        file="training.png",
        title="Training",
        reading="Lower is better. One line a run, rings are validation; with one seed and one global batch, "
        "lines of all sizes should lie on each other.",
        alt="Loss over optimizer steps",
    ),
    Picture(
        file="latency.png",
        title="Step latency",
        reading="How long single steps took on rank 0, all launches pooled. Steps slower than the right edge "
        "are counted in the last bar.",
        alt="Histogram of step durations, one row a size",
    ),
    Picture(
        file="busy.png",
        title="How busy rank 0 was",
        reading="How much of the time a kernel ran on rank 0's GPU or, on a CPU, how many processors its "
        "process kept at work. One line a run, from the samples that fell in its steps.",
        alt="Use of rank 0's GPU or processors over optimizer steps",
    ),
)

FILES = tuple(picture.file for picture in PICTURES)


def draw(table: pd.DataFrame, curves: Sequence[Curve], out: Path) -> list[Picture]:
    """Draw every figure there is data for into `out`; one that an earlier report left there goes."""
    for file in FILES:
        (out / file).unlink(missing_ok=True)
    if not curves:
        return []
    drawn = []
    for picture in PICTURES:
        figure = _DRAWERS[picture.file](table, curves)
        if figure is not None:
            plots.save(figure, out / picture.file)
            drawn.append(picture)
    return drawn


def _composition(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    known = any(any(point.composition.values()) for curve in curves for point in curve.points)
    return plots.composition(curves) if known else None


def _efficiency(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    compared = any(curve.base is not None and len(curve.points) > 1 for curve in curves)
    return plots.efficiency(curves) if compared else None


def _training(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    losses = series.losses(table)
    if losses["loss"].isna().all():
        return None
    entropies = table.loc[table["included"], "unigram_entropy_bits"].dropna().unique()
    return plots.training(curves, losses, float(entropies[0]) if len(entropies) == 1 else None)


def _latency(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    times = series.step_times_s(table)
    return plots.latency(curves, times) if any(each.size for each in times.values()) else None


def _busy(table: pd.DataFrame, curves: Sequence[Curve]) -> Figure | None:
    found = utilization.over_steps(table)
    return None if found.empty else plots.busy(curves, found)


_DRAWERS: dict[str, Callable[[pd.DataFrame, Sequence[Curve]], Figure | None]] = {
    "scaling.png": lambda table, curves: plots.scaling(curves),
    "efficiency.png": _efficiency,
    "composition.png": _composition,
    "training.png": _training,
    "latency.png": _latency,
    "busy.png": _busy,
}
