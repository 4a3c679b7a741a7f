"""Utilization of GPUs or processors, and traffic of GPUs over NVLink and PCIe."""

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
from analysis.units import text

ORDER = 120


def _processors(point: Point) -> Estimate | None:
    percents = metric("processes.cpu_percent")(point)
    return percents and percents.scaled(1 / 100)


GPU_BUSY = Column("gpu_utilization", "GPU busy", "share", "utilization", get=metric("gpu.utilization"))
_PROCESSORS = Column("processors", "busy processors per rank", "number", "utilization", get=_processors)
_COLUMNS = (
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


def build(study: Study) -> Section:
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
        tables=[size_table(study, "utilization", caption, _COLUMNS), traffic],
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
