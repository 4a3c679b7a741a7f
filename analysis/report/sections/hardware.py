"""Hardware: utilization of GPUs or processors, traffic of GPUs over NVLink and PCIe, and peak memory."""

from __future__ import annotations

from dataclasses import replace

from analysis.read.samples import Device, utilization_by_step
from analysis.report.common import (
    Column,
    Section,
    Study,
    bars_figure,
    metric,
    places,
    say,
    size_table,
    step_figure,
)
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.units import binary_bytes, text


def _processors(point: Point) -> Estimate | None:
    percents = metric("processes.cpu_percent")(point)
    return percents and percents.scaled(1 / 100)


GPU_BUSY = Column("gpu_utilization", "GPU busy", "share", "utilization", get=metric("gpu.utilization"))
_PROCESSORS = Column("processors", "busy processors per rank", "number", "utilization", get=_processors)
_USE = (
    GPU_BUSY,
    Column("power_w", "power of a GPU", "W", get=metric("gpu.power_mean_w")),
    Column("sm_clock_ratio", "clock of maximum", "share", get=metric("gpu.sm_clock_ratio_mean")),
    Column("mfu", "MFU", "share", "mfu", get=metric("mfu")),
    _PROCESSORS,
)
_TRAFFIC = [
    Column(name, heading, "B/s", "traffic", get=metric(f"gpu.{name}"), colour=colour)
    for name, heading, colour in (
        ("nvlink_tx_bytes_per_s", "NVLink sent", "c0"),
        ("nvlink_rx_bytes_per_s", "NVLink received", "c5"),
        ("pcie_tx_bytes_per_s", "PCIe sent", "c1"),
        ("pcie_rx_bytes_per_s", "PCIe received", "c4"),
    )
]


def utilization(study: Study) -> Section:
    """Empty if no run has samples."""
    on_gpu = any(each.gpu for place in places(study) for each in place.point.metrics)
    device: Device = "gpu" if on_gpu else "processors"
    busy = GPU_BUSY if on_gpu else _PROCESSORS
    caption = "Means over the ranks, the measured steps and the repeats."
    traffic = size_table(study, "traffic", "Mean rate of one GPU over measured steps.", _TRAFFIC)
    known = sorted(value.value for place in places(study) if (value := busy.of(place.point)))
    ends = [text(value, busy.unit) for value in (known[:1] + known[-1:])]
    return Section(
        "utilization",
        "Utilization",
        say("utilization", on_gpu, " to ".join(dict.fromkeys(ends))),
        tables=[size_table(study, "utilization", caption, _USE), traffic],
        figures=[
            *step_figure(
                study,
                "utilization",
                "Utilization on rank 0",
                [replace(busy, get="busy")],
                lambda run: [
                    {"step": step, "busy": share} for step, share in utilization_by_step(run.samples, device)
                ],
            ),
            *bars_figure(study, traffic, "NVLink and PCIe traffic", "mean rate of a GPU"),
        ],
    )


def _highest(point: Point) -> Estimate | None:
    peak = point.peak_memory_bytes
    return Estimate(peak, None, None, len(point.runs), "maximum") if peak else None


_MEMORY = (
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


def memory(study: Study) -> Section | None:
    """None if no run measured memory."""
    peak, place = max(((at.point.peak_memory_bytes or 0, at.name) for at in places(study)), default=(0, ""))
    if not peak:
        return None
    caption = "Peak memory of one rank: highest of all ranks and repeats."
    table = size_table(study, "memory", caption, _MEMORY)
    figures = bars_figure(study, table, "Peak memory", "peak memory of a rank")
    conclusion, key = say("memory", peak, place), binary_bytes(peak)
    return Section("memory", "Memory", conclusion, key=key, tables=[table], figures=figures)


SECTIONS = {120: utilization, 130: memory}
