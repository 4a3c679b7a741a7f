"""Utilization of GPUs or processors."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from analysis.figures.utilization_figure import utilization_figure
from analysis.report.cells import cell
from analysis.report.common import (
    MOST_LABELS,
    MOST_LINES,
    RUN_COLUMNS,
    all_points,
    coloured_points,
    frame_table,
    label_at,
    over_repeats,
    point_legend,
    point_name,
    run_key,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Unit, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.svg.labels import Box, Label, along, distinct, point_labels
from analysis.svg.lines import line
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis
from analysis.units import number, percent, plural
from disttrain.records.metrics import Metrics


def build(study: Study) -> Section | None:
    """None if no run has samples."""
    frame = study.utilization
    table = _table(study)
    if frame.empty and not table.rows:
        return None
    conclusion = _conclusion(study)
    figure = _figure(study) if not frame.empty else None
    return Section(
        "utilization",
        "Utilization",
        conclusion,
        tables=[table] if table.rows else [],
        figures=[figure] if figure else [],
    )


def _metrics(study: Study, sweep: str, runs: tuple[str, ...]) -> list[Metrics]:
    return [found for run in runs if (found := study.metrics.get((sweep, run))) is not None]


def _table(study: Study) -> Table:
    rows: list[list[Value]] = []
    links = []
    for curve, point in all_points(study):
        metrics = _metrics(study, curve.sweep, point.runs)
        gpus = [each.gpu for each in metrics if each.gpu is not None]
        processes = [each.processes for each in metrics if each.processes is not None]
        busy = [None if each.cpu_percent is None else each.cpu_percent / 100 for each in processes]
        values = [
            over_repeats(point, [each.utilization for each in gpus]),
            over_repeats(point, [each.power_mean_w for each in gpus]),
            over_repeats(point, [each.sm_clock_ratio_mean for each in gpus]),
            over_repeats(point, [each.mfu for each in metrics]),
            over_repeats(point, busy),
        ]
        if any(value is not None for value in values):
            rows.append([*size_values(study, curve, point), *values])
            links.append(sources(study, curve, point))
    return Table(
        "utilization",
        "Means over GPUs or ranks, measured steps and repeats.",
        [
            *size_columns(study),
            Column("gpu_utilization", "GPU busy", "share", "utilization"),
            Column("power_w", "power of a GPU", "W"),
            Column("sm_clock_ratio", "clock of maximum", "share"),
            Column("mfu", "MFU", "share", "mfu"),
            Column("processors", "busy processors per rank", "number", "utilization"),
        ],
        rows,
        links,
    )


def _mean_processors(study: Study) -> list[float]:
    """Busy processors of a rank at each size: the column of the table."""
    found = _table(study)
    at = [column.name for column in found.columns].index("processors")
    values = [row[at] for row in found.rows]
    return [value.value for value in values if isinstance(value, Estimate)]


def _on_gpu(study: Study) -> bool:
    return bool((study.utilization["device"] == "gpu").any())


def _conclusion(study: Study) -> str:
    if study.utilization.empty:
        return "Means of each size are in the table; there were too few samples for a figure."
    on_gpu = _on_gpu(study)
    shown = study.utilization[study.utilization["device"] == ("gpu" if on_gpu else "processors")]
    low, high = (float(value) for value in shown.groupby("run")["utilization"].mean().agg(["min", "max"]))
    if not on_gpu and (means := _mean_processors(study)):
        return (
            f"A rank's process kept {number(min(means))} to {number(max(means))} processors busy, mean over "
            "the ranks and samples of a size."
        )
    if on_gpu:
        return f"A kernel ran on rank 0's GPU for {percent(low, 0)} to {percent(high, 0)} of the time."
    text = f"The process of rank 0 kept {number(low)} to {number(high)} processors busy."
    return text if low < high else f"The process of rank 0 kept {number(low)} processors busy."


def _by_size(study: Study, shown: pd.DataFrame) -> str:
    """Utilization of rank 0 at the size where it is lowest and where it is highest."""
    means = shown.groupby(["sweep", "run"])["utilization"].mean().to_dict()
    found = []
    for curve, point in all_points(study):
        value = over_repeats(point, [means.get((curve.sweep, run)) for run in point.runs])
        if value is not None:
            found.append((value, point_name(study, curve, point)))
    unit: Unit = "share" if _on_gpu(study) else "number"
    (low, least), (high, most) = (pick(found, key=lambda each: each[0].value) for pick in (min, max))
    lowest = f"{cell(low, unit).in_text} on {least}"
    what = (
        "Time with a kernel on rank 0's GPU"
        if unit == "share"
        else "Number of processors that rank 0 kept busy"
    )
    if low is high:
        return f"{what}: {lowest}."
    return f"{what}: from {lowest} to {cell(high, unit).in_text} on {most}."


def _figure(study: Study) -> Figure:
    on_gpu = _on_gpu(study)
    shown = study.utilization[study.utilization["device"] == ("gpu" if on_gpu else "processors")]
    top = float(shown["utilization"].max()) or 1.0
    label = "time with a running kernel" if on_gpu else "busy processors"
    x = Axis("optimizer step", 0.0, float(shown["step"].max()))
    y = Axis(label, 0.0, 1.06 * top)
    if on_gpu:
        y = replace(y, form=lambda value: percent(value, 0))
    finding = _by_size(study, shown)
    plot = Plot("utilization-figure", "Utilization on rank 0", finding, x, y, point_legend(study))
    labels: list[Label] = []
    lines: list[Box] = []
    by_run = {key: frame for key, frame in shown.groupby(["sweep", "run"])}
    for curve, point, colour in coloured_points(study):
        for run in point.runs[: 1 if len(by_run) > MOST_LINES else None]:
            if (frame := by_run.get((curve.sweep, run))) is not None:
                title = f"{run}, {point_name(study, curve, point)}"
                key = run_key(curve.sweep, run)
                steps, values = list(frame["step"]), list(frame["utilization"])
                plot.add(line(plot, steps, values, colour, title=title, key=key))
                path = [(plot.xs(step), plot.ys(value)) for step, value in zip(steps, values, strict=True)]
                lines += along(path)
                labels.append(
                    Label(plural(point.size, curve.unit), *path[label_at(curve, point, len(path))], colour)
                )
    if len(study.curves) > 1 and len(labels) <= MOST_LABELS:  # a curve has one colour for all sizes
        plot.add(point_labels(plot, distinct(labels), lines))
    reading = (
        "A kernel that waits for the network counts as busy, so this is no efficiency."
        if on_gpu
        else "Processor time of rank 0's process by segments of steps, without its loader processes; the "
        "table has the mean over all ranks."
    )
    return Figure(
        "utilization",
        "Utilization on rank 0",
        finding,
        plot.svg(),
        finding,
        lambda: utilization_figure(study.curves, study.utilization),
        f"{reading} One line for each run, or for the first of each size if there are many.",
        data=lambda: _data(study),
    )


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
