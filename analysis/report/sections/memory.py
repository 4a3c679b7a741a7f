"""Peak memory by size."""

from __future__ import annotations

import pandas as pd

from analysis.figures.style import curve_class
from analysis.report.common import (
    all_points,
    bar_chart,
    grouped_rows,
    over_repeats,
    point_name,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.svg.bars import Segment
from analysis.svg.scales import Axis
from analysis.units import binary_bytes

_MIB = 2**20


def build(study: Study) -> Section | None:
    """None if no run measured memory."""
    points = [(curve, point) for curve, point in all_points(study) if point.peak_memory_bytes]
    if not points:
        return None
    rows: list[list[Value]] = []
    for curve, point in points:
        metrics = [found for run in point.runs if (found := study.metrics.get((curve.sweep, run)))]
        peaks = [row["peak_memory_bytes"] for row in study.runs_of(curve, point)]
        known = [float(peak) for peak in peaks if not pd.isna(peak)]
        rows.append(
            [
                *size_values(study, curve, point),
                Estimate(float(point.peak_memory_bytes or 0), None, None, len(known), "maximum"),
                over_repeats(point, known),
                over_repeats(point, [each.peak_reserved_memory_bytes or None for each in metrics]),
                over_repeats(point, [each.gpu_memory_utilization or None for each in metrics]),
            ]
        )
    table = Table(
        "memory",
        "Peak memory of one rank: highest of all ranks and repeats; means over repeats of the highest rank.",
        [
            *size_columns(study),
            Column("peak_bytes", "highest peak", "B", "peak-memory"),
            Column("mean_peak_bytes", "mean peak", "B", "peak-memory"),
            Column("reserved_bytes", "reserved by the allocator", "B", "peak-memory"),
            Column("device_share", "share of the device", "share", "peak-memory"),
        ],
        rows,
        [sources(study, curve, point) for curve, point in points],
    )
    sizes = [point.peak_memory_bytes or 0 for _, point in points]
    conclusion = _conclusion(study)
    return Section("memory", "Memory", conclusion, tables=[table], figures=[_figure(study, max(sizes))])


def _conclusion(study: Study) -> str:
    """Change of the peak from the smallest to the largest size of the first curve with two sizes."""
    for curve in study.curves:
        known = [point for point in curve.points if point.peak_memory_bytes]
        if len(known) > 1:
            first, last = known[0].peak_memory_bytes or 0, known[-1].peak_memory_bytes or 0
            change = last / first - 1
            verb = (
                "stays within 1 %"
                if abs(change) < 0.01
                else f"{'grows' if change > 0 else 'falls'} by {abs(change):.0%}".replace("%", " %")
            )
            label = f"{curve.label}: " if len(study.curves) > 1 else ""
            return (
                f"{label}The peak of a rank {verb} from {known[0].size} to {known[-1].size} {curve.unit}s "
                f"({binary_bytes(first)} to {binary_bytes(last)})."
            )
    most = max(point.peak_memory_bytes or 0 for _, point in all_points(study))
    return f"A rank used at most {binary_bytes(most)}."


def _figure(study: Study, most: int) -> Figure:
    rows = []
    curve, point = next(each for each in all_points(study) if each[1].peak_memory_bytes == most)
    place = point_name(study, curve, point)
    finding = f"The highest peak is {binary_bytes(most)} on {place} (maximum, n={len(point.runs)})."
    for curve, point in all_points(study):
        if point.peak_memory_bytes:
            name, text = point_name(study, curve, point), binary_bytes(point.peak_memory_bytes)
            colour = curve_class(study.curves.index(curve))
            bar = Segment(0, point.peak_memory_bytes / _MIB, colour, f"{name}: {text}")
            rows.append((curve, point, [bar], text))
    x = Axis("peak memory of a rank (MiB)", 0.0, 1.25 * most / _MIB)
    reading = "A bar is the maximum over ranks and repeats."
    bars = grouped_rows(study, rows)
    return bar_chart(study, "memory", "Peak memory", finding, bars, x, data="memory", reading=reading)
