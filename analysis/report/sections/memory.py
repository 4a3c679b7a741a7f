"""Peak memory by size."""

from __future__ import annotations

from functools import partial

import pandas as pd

from analysis.draw.bars import Segment, bars
from analysis.draw.style import Axis, curve_colour
from analysis.report.common import (
    all_points,
    grouped_rows,
    over_repeats,
    point_name,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import binary_bytes

ORDER = 130

_MIB = 2**20


def build(study: Study) -> Section | None:
    """None if no run measured memory."""
    points = [(curve, point) for curve, point in all_points(study) if point.peak_memory_bytes]
    if not points:
        return None
    rows: list[list[Value]] = []
    drawn = []
    for curve, point in points:
        metrics = [found for run in point.runs if (found := study.metrics.get((curve.sweep, run)))]
        peaks = [row["peak_memory_bytes"] for row in study.runs_of(curve, point)]
        known = [float(peak) for peak in peaks if not pd.isna(peak)]
        highest = float(point.peak_memory_bytes or 0)
        rows.append(
            [
                *size_values(study, curve, point),
                Estimate(highest, None, None, len(known), "maximum"),
                over_repeats(point, known) if len(known) > 1 else None,
                over_repeats(point, [each.peak_reserved_memory_bytes or None for each in metrics]),
                over_repeats(point, [each.gpu_memory_utilization or None for each in metrics]),
            ]
        )
        name, text = point_name(study, curve, point), binary_bytes(highest)
        colour = curve_colour(study.curves.index(curve))
        drawn.append((curve, point, [Segment(0, highest / _MIB, colour, f"{name}: {text}")], text))
    columns = [
        *size_columns(study),
        Column("peak_bytes", "highest peak", "B", "peak-memory"),
        Column("mean_peak_bytes", "mean peak", "B", "peak-memory"),
        Column("reserved_bytes", "reserved by the allocator", "B", "peak-memory"),
        Column("device_share", "share of the device", "share", "peak-memory"),
    ]
    caption = "Peak memory of one rank: highest of all ranks and repeats."
    links = [sources(study, curve, point) for curve, point in points]
    peaks = [(point.peak_memory_bytes or 0, point_name(study, curve, point)) for curve, point in points]
    x = Axis("peak memory of a rank (MiB)", 0.0, max(peaks)[0] / _MIB)
    drawing = partial(bars, grouped_rows(study, drawn), x, emulated=study.emulated)
    alt = "; ".join(f"{name}: {binary_bytes(peak)}" for peak, name in peaks)
    return Section(
        "memory",
        "Memory",
        say("memory", *max(peaks)),
        key=binary_bytes(max(peaks)[0]),
        tables=[Table("memory", caption, columns, rows, links)],
        figures=[Figure("memory", "Peak memory", drawing, alt, data="memory")],
    )
