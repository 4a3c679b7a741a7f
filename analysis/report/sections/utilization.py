"""Utilization of GPUs or processors."""

from __future__ import annotations

from analysis.read.samples import Device, utilization_by_step
from analysis.report.common import (
    all_points,
    kept,
    over_repeats,
    size_columns,
    size_values,
    sources,
    step_figure,
)
from analysis.report.section import Column, Figure, Section, Table
from analysis.report.sentences import say
from analysis.study import Study
from analysis.units import number, percent

ORDER = 120


def build(study: Study) -> Section | None:
    """None if no run has samples."""
    on_gpu = bool((study.utilization["device"] == "gpu").any())
    rows, links, busy = [], [], []
    for curve, point in all_points(study):
        metrics = [found for run in point.runs if (found := study.metrics.get((curve.sweep, run)))]
        gpus = [each.gpu for each in metrics if each.gpu is not None]
        processes = [each.processes for each in metrics if each.processes is not None]
        loads = [None if each.cpu_percent is None else each.cpu_percent / 100 for each in processes]
        values = [
            over_repeats(point, [each.utilization for each in gpus]),
            over_repeats(point, [each.power_mean_w for each in gpus]),
            over_repeats(point, [each.sm_clock_ratio_mean for each in gpus]),
            over_repeats(point, [each.mfu for each in metrics]),
            over_repeats(point, loads),
        ]
        if any(value is not None for value in values):
            rows.append([*size_values(study, curve, point), *values])
            links.append(sources(study, curve, point))
            value = values[0 if on_gpu else -1]
            busy += [] if value is None else [value.value]
    figure = _figure(study, on_gpu=on_gpu)
    if figure is None and not rows:
        return None
    ends = [percent(end(busy), 0) if on_gpu else number(end(busy)) for end in (min, max) if busy]
    extent = " to ".join(dict.fromkeys(ends))
    columns = [
        *size_columns(study),
        Column("gpu_utilization", "GPU busy", "share", "utilization"),
        Column("power_w", "power of a GPU", "W"),
        Column("sm_clock_ratio", "clock of maximum", "share"),
        Column("mfu", "MFU", "share", "mfu"),
        Column("processors", "busy processors per rank", "number", "utilization"),
    ]
    caption = "Means over the ranks, the measured steps and the repeats."
    return Section(
        "utilization",
        "Utilization",
        say("utilization", on_gpu, extent) if busy else "",
        tables=[Table("utilization", caption, columns, rows, links)] if rows else [],
        figures=kept(figure),
    )


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
