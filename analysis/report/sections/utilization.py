"""Utilization of GPUs or processors."""

from __future__ import annotations

from analysis.read.samples import Device, utilization_by_step
from analysis.report.common import all_points, kept, metric, point_table, step_figure
from analysis.report.section import Column, Figure, Section
from analysis.report.sentences import say
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import number, percent

ORDER = 120


def build(study: Study) -> Section | None:
    """None if no run has samples."""
    on_gpu = any(each.gpu for _, point in all_points(study) for each in point.metrics)
    columns = [
        Column("gpu_utilization", "GPU busy", "share", "utilization", get=metric("gpu.utilization")),
        Column("power_w", "power of a GPU", "W", get=metric("gpu.power_mean_w")),
        Column("sm_clock_ratio", "clock of maximum", "share", get=metric("gpu.sm_clock_ratio_mean")),
        Column("mfu", "MFU", "share", "mfu", get=metric("mfu")),
        Column("processors", "busy processors per rank", "number", "utilization", get=_processors),
    ]
    caption = "Means over the ranks, the measured steps and the repeats."
    tables = kept(point_table(study, "utilization", caption, columns))
    figures = kept(_figure(study, on_gpu=on_gpu))
    if not figures and not tables:
        return None
    busy = metric("gpu.utilization") if on_gpu else _processors
    known = [value.value for _, point in all_points(study) if (value := busy(point))]
    ends = [percent(end(known), 0) if on_gpu else number(end(known)) for end in (min, max) if known]
    text = say("utilization", on_gpu, " to ".join(dict.fromkeys(ends))) if known else ""
    return Section("utilization", "Utilization", text, tables=tables, figures=figures)


def _processors(point: Point) -> Estimate | None:
    percents = metric("processes.cpu_percent")(point)
    return percents and percents.scaled(1 / 100)


def _figure(study: Study, *, on_gpu: bool) -> Figure | None:
    device: Device = "gpu" if on_gpu else "processors"
    heading = "time with a running kernel" if on_gpu else "busy processors"
    columns = [
        Column("step", "step", "number"),
        Column("utilization", heading, "share" if on_gpu else "number", "utilization"),
    ]
    none: tuple[list[float], list[float]] = ([], [])
    return step_figure(
        study,
        "utilization",
        "Utilization on rank 0",
        columns,
        lambda run: list(zip(*utilization_by_step(run.samples).get(device, none), strict=True)),
    )
