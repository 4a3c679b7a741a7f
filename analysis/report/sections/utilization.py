"""Utilization of GPUs or processors, and traffic of GPUs over NVLink and PCIe."""

from __future__ import annotations

from analysis.read.samples import Device, utilization_by_step
from analysis.report.common import all_points, kept, metric, point_table, stacked_figure, step_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import text

ORDER = 120


def _processors(point: Point) -> Estimate | None:
    percents = metric("processes.cpu_percent")(point)
    return percents and percents.scaled(1 / 100)


_GPU = Column("gpu_utilization", "GPU busy", "share", "utilization", get=metric("gpu.utilization"))
_PROCESSORS = Column("processors", "busy processors per rank", "number", "utilization", get=_processors)
_COLUMNS = (
    _GPU,
    Column("power_w", "power of a GPU", "W", get=metric("gpu.power_mean_w")),
    Column("sm_clock_ratio", "clock of maximum", "share", get=metric("gpu.sm_clock_ratio_mean")),
    Column("mfu", "MFU", "share", "mfu", get=metric("mfu")),
    _PROCESSORS,
)
_TRAFFIC = [
    Column(
        f"{name}_bytes_per_s", heading, "B/s", "traffic", get=metric(f"gpu.{name}_bytes_per_s"), colour=colour
    )
    for name, heading, colour in (
        ("nvlink_tx", "NVLink sent", "c0"),
        ("nvlink_rx", "NVLink received", "c5"),
        ("pcie_tx", "PCIe sent", "c1"),
        ("pcie_rx", "PCIe received", "c4"),
    )
]


def build(study: Study) -> Section | None:
    """None if no run has samples."""
    on_gpu = any(each.gpu for _, point in all_points(study) for each in point.metrics)
    device: Device = "gpu" if on_gpu else "processors"
    busy = _GPU if on_gpu else _PROCESSORS
    caption = "Means over the ranks, the measured steps and the repeats."
    tables = kept(
        point_table(study, "utilization", caption, _COLUMNS),
        point_table(study, "traffic", "Mean rate of one GPU over measured steps.", _TRAFFIC),
    )
    figures = kept(
        step_figure(
            study,
            "utilization",
            "Utilization on rank 0",
            [Column("step", "step", "number"), busy],
            lambda run: list(zip(*utilization_by_step(run.samples).get(device, ()), strict=True)),
        ),
        stacked_figure(study, "traffic", "NVLink and PCIe traffic", "mean rate of a GPU", _TRAFFIC),
    )
    if not figures and not tables:
        return None
    known = [value.value for _, point in all_points(study) if (value := busy.of(point))]
    ends = [text(end(known), busy.unit) for end in (min, max) if known]
    conclusion = say("utilization", on_gpu, " to ".join(dict.fromkeys(ends))) if known else ""
    return Section("utilization", "Utilization", conclusion, tables=tables, figures=figures)
