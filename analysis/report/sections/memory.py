"""Peak memory by size."""

from __future__ import annotations

from analysis.report.common import (
    all_points,
    over_repeats,
    point_name,
    size_columns,
    size_values,
    sources,
    stacked_figure,
)
from analysis.report.section import Column, Section, Table, Value
from analysis.report.sentences import say
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import binary_bytes

ORDER = 130


def build(study: Study) -> Section | None:
    """None if no run measured memory."""
    points = [(curve, point) for curve, point in all_points(study) if point.peak_memory_bytes]
    if not points:
        return None
    rows: list[list[Value]] = []
    for curve, point in points:
        metrics = point.metrics
        known = [float(each.peak_memory_bytes) for each in metrics if each.peak_memory_bytes is not None]
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
    columns = [
        *size_columns(study),
        Column("peak_bytes", "highest peak", "B", "peak-memory"),
        Column("mean_peak_bytes", "mean peak", "B", "peak-memory"),
        Column("reserved_bytes", "reserved by the allocator", "B", "peak-memory"),
        Column("device_share", "share of the device", "share", "peak-memory"),
    ]
    caption = "Peak memory of one rank: highest of all ranks and repeats."
    links = [sources(point) for curve, point in points]
    peaks = [(point.peak_memory_bytes or 0, point_name(study, curve, point)) for curve, point in points]
    bars = [(curve, point, {"peak": float(point.peak_memory_bytes or 0)}) for curve, point in points]
    kinds = {"peak": ("peak memory", "c0")}
    figure = stacked_figure(study, "memory", "Peak memory", "peak memory of a rank", "B", kinds, bars)
    return Section(
        "memory",
        "Memory",
        say("memory", *max(peaks)),
        key=binary_bytes(max(peaks)[0]),
        tables=[Table("memory", caption, columns, rows, links)],
        figures=[figure],
    )
