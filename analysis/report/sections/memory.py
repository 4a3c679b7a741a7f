"""Peak memory by size."""

from __future__ import annotations

from analysis.report.common import Column, Section, Study, bars_figure, metric, places, say, size_table
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.units import binary_bytes

ORDER = 130


def _highest(point: Point) -> Estimate | None:
    peak = point.peak_memory_bytes
    return Estimate(peak, None, None, len(point.runs), "maximum") if peak else None


_COLUMNS = (
    Column("peak_bytes", "highest peak", "B", "peak-memory", get=_highest, colour="c0"),
    Column("mean_peak_bytes", "mean peak", "B", "peak-memory", get=metric("peak_memory_bytes")),
    Column(
        "reserved_bytes",
        "reserved by the allocator",
        "B",
        "peak-memory",
        get=metric("peak_reserved_memory_bytes"),
    ),
    Column(
        "device_share", "share of the device", "share", "peak-memory", get=metric("gpu_memory_utilization")
    ),
)


def build(study: Study) -> Section | None:
    """None if no run measured memory."""
    peak, place = max(((at.point.peak_memory_bytes or 0, at.name) for at in places(study)), default=(0, ""))
    if not peak:
        return None
    caption = "Peak memory of one rank: highest of all ranks and repeats."
    table = size_table(study, "memory", caption, _COLUMNS)
    figures = bars_figure(study, table, "Peak memory", "peak memory of a rank")
    conclusion, key = say("memory", peak, place), binary_bytes(peak)
    return Section("memory", "Memory", conclusion, key=key, tables=[table], figures=figures)
