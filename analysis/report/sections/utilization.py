"""Utilization of GPUs or processors."""

from __future__ import annotations

from dataclasses import replace

from analysis.efficiency import Curve, Point
from analysis.figures.utilization_figure import utilization_figure
from analysis.report.cells import cell
from analysis.report.common import (
    MOST_LINES,
    RUN_COLUMNS,
    all_points,
    coloured_points,
    frame_table,
    over_repeats,
    point_legend,
    point_name,
    run_key,
    size_columns,
    size_dashes,
    size_legend,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Unit, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.svg.lines import line
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis
from analysis.units import number, percent
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


def _sizes(study: Study) -> list[tuple[Curve, Point, list[Estimate | None]]]:
    """Each size with the columns of the table; sizes without any are left out."""
    found = []
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
            found.append((curve, point, values))
    return found


def _table(study: Study) -> Table:
    found = _sizes(study)
    rows: list[list[Value]] = [[*size_values(study, curve, point), *values] for curve, point, values in found]
    parts = "GPUs" if _on_gpu(study) else "ranks"
    return Table(
        "utilization",
        f"Each value is the mean over the {parts}, the measured steps and the repeats.",
        [
            *size_columns(study),
            Column("gpu_utilization", "GPU busy", "share", "utilization"),
            Column("power_w", "power of a GPU", "W"),
            Column("sm_clock_ratio", "clock of maximum", "share"),
            Column("mfu", "MFU", "share", "mfu"),
            Column("processors", "busy processors per rank", "number", "utilization"),
        ],
        rows,
        [sources(study, curve, point) for curve, point, _ in found],
    )


def _means(study: Study) -> tuple[list[tuple[Estimate, str]], bool]:
    """Utilization at each size with its name, and whether it is that of all ranks, as in the table; of rank 0
    alone where the table has none."""
    at = 0 if _on_gpu(study) else -1
    found = [(values[at], point_name(study, curve, point)) for curve, point, values in _sizes(study)]
    known = [(value, name) for value, name in found if value is not None]
    if known:
        return known, True
    device = "gpu" if _on_gpu(study) else "processors"
    shown = study.utilization[study.utilization["device"] == device]
    means = shown.groupby(["sweep", "run"])["utilization"].mean().to_dict()
    of_rank_0 = [
        (
            over_repeats(point, [means.get((curve.sweep, run)) for run in point.runs]),
            point_name(study, curve, point),
        )
        for curve, point in all_points(study)
    ]
    return [(value, name) for value, name in of_rank_0 if value is not None], False


def _on_gpu(study: Study) -> bool:
    return bool((study.utilization["device"] == "gpu").any())


def _conclusion(study: Study) -> str:
    if study.utilization.empty:
        return "Means of each size are in the table; there were too few samples for a figure."
    found, of_all = _means(study)
    values = [estimate.value for estimate, _ in found]
    form = (lambda value: percent(value, 0)) if _on_gpu(study) else number
    span = " to ".join(dict.fromkeys(map(form, (min(values), max(values)))))
    if _on_gpu(study):
        whose, of = (
            ("a", "the GPUs and samples of a size") if of_all else ("rank 0's", "the samples of a size")
        )
        return f"A kernel ran on {whose} GPU for {span} of the time, mean over {of}."
    whose, of = (
        ("a rank", "the ranks and samples of a size") if of_all else ("rank 0", "the samples of a size")
    )
    return f"The process of {whose} kept {span} processors busy, mean over {of}."


def _by_size(study: Study) -> str:
    """Utilization at the size where it is lowest and where it is highest."""
    found, of_all = _means(study)
    unit: Unit = "share" if _on_gpu(study) else "number"
    (low, least), (high, most) = (pick(found, key=lambda each: each[0].value) for pick in (min, max))
    lowest = f"{cell(low, unit).in_text} on {least}"
    what = "Time with a running kernel" if unit == "share" else "Busy processors"
    whose = "mean over all ranks" if of_all else "rank 0"
    if low is high:
        return f"{what}, {whose}: {lowest}."
    return f"{what}, {whose}: from {lowest} to {cell(high, unit).in_text} on {most}."


def _figure(study: Study) -> Figure:
    on_gpu = _on_gpu(study)
    shown = study.utilization[study.utilization["device"] == ("gpu" if on_gpu else "processors")]
    top = float(shown["utilization"].max()) or 1.0
    label = "time with a running kernel" if on_gpu else "busy processors"
    x = Axis("optimizer step", 0.0, float(shown["step"].max()))
    y = Axis(label, 0.0, 1.06 * top)
    if on_gpu:
        y = replace(y, form=lambda value: percent(value, 0))
    finding = _by_size(study)
    legend = [*point_legend(study), *size_legend(study)]
    plot = Plot("utilization-figure", "Utilization on rank 0", finding, x, y, legend)
    by_run = {key: frame for key, frame in shown.groupby(["sweep", "run"])}
    for curve, point, colour in coloured_points(study):
        dashes = size_dashes(study, curve, point)
        for run in point.runs[: 1 if len(by_run) > MOST_LINES else None]:
            if (frame := by_run.get((curve.sweep, run))) is not None:
                title = f"{run}, {point_name(study, curve, point)}"
                key = run_key(curve.sweep, run)
                steps, values = list(frame["step"]), list(frame["utilization"])
                plot.add(line(plot, steps, values, colour, title=title, key=key, dashes=dashes))
    reading = (
        "A kernel that waits for the network counts as busy, so this is no efficiency."
        if on_gpu
        else "Lines: processor time of rank 0's process by segments of steps, without its loader processes."
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
