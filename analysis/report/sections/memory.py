"""Peak memory by size."""

from __future__ import annotations

from analysis.report.common import all_points, kept, metric, point_name, point_table, stacked_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import binary_bytes

ORDER = 130


def build(study: Study) -> Section | None:
    """None if no run measured memory."""
    mean, reserved = metric("peak_memory_bytes"), metric("peak_reserved_memory_bytes")
    columns = [
        Column("peak_bytes", "highest peak", "B", "peak-memory", get=_highest, colour="c0"),
        Column("mean_peak_bytes", "mean peak", "B", "peak-memory", get=mean),
        Column("reserved_bytes", "reserved by the allocator", "B", "peak-memory", get=reserved),
        Column(
            "device_share",
            "share of the device",
            "share",
            "peak-memory",
            get=metric("gpu_memory_utilization"),
        ),
    ]
    caption = "Peak memory of one rank: highest of all ranks and repeats."
    peaks = [
        (each.peak_memory_bytes or 0, point_name(study, curve, each)) for curve, each in all_points(study)
    ]
    peak, place = max(peaks, default=(0, ""))
    if not peak:
        return None
    return Section(
        "memory",
        "Memory",
        say("memory", peak, place),
        key=binary_bytes(peak),
        tables=kept(point_table(study, "memory", caption, columns)),
        figures=kept(stacked_figure(study, "memory", "Peak memory", "peak memory of a rank", columns)),
    )


def _highest(point: Point) -> Estimate | None:
    peak = point.peak_memory_bytes
    return Estimate(peak, None, None, len(point.runs), "maximum") if peak else None
