"""Utilization of GPUs or processors."""

from __future__ import annotations

from functools import partial

from analysis.draw.points import lines
from analysis.draw.style import Axis
from analysis.report.common import (
    RUN_COLUMNS,
    all_points,
    frame_table,
    over_repeats,
    run_legend,
    run_lines,
    size_columns,
    size_values,
    sources,
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
    if study.utilization.empty and not rows:
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
        figures=[] if study.utilization.empty else [_figure(study, on_gpu=on_gpu)],
    )


def _figure(study: Study, *, on_gpu: bool) -> Figure:
    shown = study.utilization[study.utilization["device"] == ("gpu" if on_gpu else "processors")]
    label = "time with a running kernel" if on_gpu else "busy processors"
    low, high = float(shown["utilization"].min()), float(shown["utilization"].max()) or 1.0
    form = (lambda value: percent(value, 0)) if on_gpu else "{:.3g}".format
    x = Axis("optimizer step", 0.0, float(shown["step"].max()))
    y = Axis(label, 0.0, 1.06 * high, form=form)
    runs = run_lines(study, shown, "utilization")
    drawing = partial(lines, runs, x, y, run_legend(study), emulated=study.emulated)
    alt = f"{label.capitalize()} on rank 0 by step: {form(low)} to {form(high)}"
    return Figure("utilization", "Utilization on rank 0", drawing, alt, data=lambda: _data(study))


def _data(study: Study) -> Table:
    columns = [
        *RUN_COLUMNS,
        Column("device", "device"),
        Column("step", "step", "number"),
        Column("utilization", "utilization", "number", "utilization"),
    ]
    caption = (
        "Utilization of rank 0 by segment of steps, and the mean step of the segment: the share of time with "
        "a running kernel of a GPU, or the number of busy processors."
    )
    return frame_table("utilization_by_step", caption, columns, study.utilization)
