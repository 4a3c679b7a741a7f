"""Distribution of step times: histogram, ECDF and percentiles by size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.figures import plots
from analysis.report.common import (
    coloured_points,
    point_legend,
    point_name,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table
from analysis.study import Study
from analysis.svg.distributions import ecdf_points, histogram
from analysis.svg.elements import text
from analysis.svg.lines import line
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis
from analysis.units import percent, plural, seconds, time_scale

Pooled = tuple[Curve, Point, str, NDArray[np.float64]]
_BINS = 48
_MOST_HISTOGRAMS = 6


def build(study: Study) -> Section | None:
    """Histograms, ECDF and table; None without step records."""
    found = _pooled(study)
    if not found:
        return None
    rows, links = [], []
    for curve, point, _, times in found:
        p50, p95, p99 = (float(value) for value in np.percentile(times, [50, 95, 99]))
        spread = float(times.std() / times.mean())
        rows.append(
            [*size_values(study, curve, point), p50, p95, p99, float(times.max()), spread, times.size]
        )
        links.append(sources(study, curve, point))
    table = Table(
        "step_percentiles",
        "Percentiles of the measured steps of rank 0, all repeats pooled; n is the number of steps.",
        [
            *size_columns(study),
            Column("p50_s", "median", "s", "percentiles"),
            Column("p95_s", "p95", "s", "percentiles"),
            Column("p99_s", "p99", "s", "percentiles"),
            Column("max_s", "slowest", "s", "percentiles"),
            Column("variation", "variation", "share", "variation"),
            Column("steps", "n", "count"),
        ],
        rows,
        links,
    )
    conclusion = _conclusion(study, found)
    figures = [_ecdf(study, found, conclusion)]
    if len(found) <= _MOST_HISTOGRAMS:
        figures.append(_histograms(study, found))
    return Section("distributions", "Distribution of step times", conclusion, tables=[table], figures=figures)


def _pooled(study: Study) -> list[Pooled]:
    found = []
    for curve, point, colour in coloured_points(study):
        runs = [study.step_times_s.get((curve.sweep, run)) for run in point.runs]
        known = [times for times in runs if times is not None and times.size]
        if known:
            found.append((curve, point, colour, np.concatenate(known)))
    return found


def _conclusion(study: Study, found: list[Pooled]) -> str:
    ratios = [(float(np.percentile(t, 99) / np.median(t)), curve, point) for curve, point, _, t in found]
    most, curve, point = max(ratios, key=lambda each: each[0])
    return (
        f"The slowest 1 % of steps take at least {most:.2f}\N{MULTIPLICATION SIGN} the median on "
        f"{point_name(study, curve, point)}" + (", the most of all sizes." if len(found) > 1 else ".")
    )


def _edge_s(found: list[Pooled]) -> float:
    """Right edge of the axis: rare slow steps do not compress the others."""
    times = [times for *_, times in found]
    return min(
        1.25 * max(np.percentile(each, 99) for each in times), 1.02 * max(each.max() for each in times)
    )


def _ecdf(study: Study, found: list[Pooled], conclusion: str) -> Figure:
    edge_s = _edge_s(found)
    factor, unit = time_scale(edge_s)
    low = 0.95 * min(float(times.min()) for *_, times in found) * factor
    x = Axis(f"duration of a step ({unit})", low, edge_s * factor)
    y = Axis("share of steps", 0.0, 1.0, form=lambda value: percent(value, 0))
    description = "; ".join(
        f"{point_name(study, curve, point)}: median {seconds(float(np.median(times)))}, p99 "
        f"{seconds(float(np.percentile(times, 99)))}"
        for curve, point, _, times in found
    )
    plot = Plot("ecdf", "Distribution of step times", description, x, y, point_legend(study))
    numbered = len(study.curves) > 1 and len(found) <= _MOST_HISTOGRAMS  # one colour for all sizes of a curve
    for curve, point, colour, times in found:
        values, shares = ecdf_points(times * factor)
        name = point_name(study, curve, point)
        key = name if len(study.curves) == 1 else curve.label
        plot.add(line(plot, values, shares, colour, title=name, key=key))
        if numbered:
            middle = plot.xs(float(np.median(times)) * factor)
            plot.add(text(str(point.size), middle + 4, plot.ys(0.5) + 4, class_="value strong"))
    return Figure(
        "ecdf",
        "Cumulative distribution",
        f"{conclusion} Share of steps up to each duration: a steep line is a steady step, a long foot to the "
        "right are slow steps." + (" Numbers are sizes." if numbered else ""),
        plot.svg(),
        description,
        lambda: plots.ecdf_figure(study.curves, study.step_times_s),
    )


def _histograms(study: Study, found: list[Pooled]) -> Figure:
    edge_s = _edge_s(found)
    factor, unit = time_scale(edge_s)
    low = 0.95 * min(float(times.min()) for *_, times in found) * factor
    edges = np.linspace(low, edge_s * factor, _BINS + 1)
    row_height = 80.0
    x = Axis(f"duration of a step ({unit})", low, edge_s * factor)
    frame = Plot("latency", "Histogram of step times", "One row for each size.", x, Axis("", 0, 1))
    frame.left, frame.grid, frame.categories = 8.0, "", True
    frame.height = 12 + row_height * len(found) + 44
    for index, (curve, point, colour, times) in enumerate(found):
        counts, _ = np.histogram(np.clip(times * factor, edges[0], edges[-1]), edges)
        titles = [
            f"{point_name(study, curve, point)}: {plural(int(count), 'step')} from "
            f"{seconds(start / factor)} to "
            f"{seconds(end / factor)}"
            for count, start, end in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
        row = Plot("", "", "", x, Axis("", 0, float(counts.max())), left=frame.left, categories=True)
        bottom = 12 + row_height * (index + 1)
        row.height = bottom + 42
        row.head = bottom - row_height + 30
        frame.add(histogram(row, edges, counts, colour, titles))
        p50, p99 = (seconds(float(np.percentile(times, at))) for at in (50, 99))
        frame.caption(
            f"{point_name(study, curve, point)}",
            f"median {p50} · p99 {p99}",
            bottom - row_height + 22,
        )
        frame.rule(bottom)
    return Figure(
        "latency",
        "Histogram of step times",
        "A second peak is a second kind of step (a checkpoint, a validation, a disturbance). All "
        "repeats pooled; "
        "the last bar also counts steps beyond the right edge.",
        frame.svg(),
        "Histogram of step durations, one row for each size",
        lambda: plots.latency_figure(study.curves, study.step_times_s),
    )
