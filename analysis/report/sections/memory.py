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
from analysis.units import binary_bytes, plural

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
                over_repeats(point, known) if len(known) > 1 else None,
                over_repeats(point, [each.peak_reserved_memory_bytes or None for each in metrics]),
                over_repeats(point, [each.gpu_memory_utilization or None for each in metrics]),
            ]
        )
    several = any(len(point.runs) > 1 for _, point in points)
    table = Table(
        "memory",
        "Peak memory of one rank: highest of all ranks and repeats"
        + ("; means over repeats of the highest rank." if several else "."),
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
    """Peaks of the smallest size and of the others, of the first curve with two sizes."""
    for curve in study.curves:
        known = [(point.size, point.peak_memory_bytes) for point in curve.points if point.peak_memory_bytes]
        if len(known) > 1:
            (first, peak), *others = known
            sizes, peaks = zip(*others, strict=True)
            low, high = binary_bytes(min(peaks)), binary_bytes(max(peaks))
            span = low if low == high else f"{low} to {high}"
            on = (
                plural(sizes[0], curve.unit)
                if len(sizes) == 1
                else f"{sizes[0]} to {sizes[-1]} {curve.unit}s"
            )
            label = f"{curve.label}: " if len(study.curves) > 1 else ""
            return (
                f"{label}The peak of a rank is {binary_bytes(peak)} on {plural(first, curve.unit)} and "
                f"{span} on {on}."
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
