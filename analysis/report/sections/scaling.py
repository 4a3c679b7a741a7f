"""Scaling: throughput, speed-up and efficiency by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from analysis.comparison import repeat_plan
from analysis.draw.points import Guide, Points, points
from analysis.draw.style import Axis
from analysis.report.common import (
    all_points,
    has_shapes,
    metric,
    over_repeats,
    point_name,
    sentence,
    size_columns,
    size_table,
    size_values,
    sources,
    unit_name,
)
from analysis.report.headline import headline, scaling_answer
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.curves import Curve, Point
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import cell, percent, text

ORDER = 20

_MANY = 8
"""Ratio of the largest to the smallest size above which axes are logarithmic."""


def build(study: Study) -> Section | None:
    """Table of all curves, and the figure of efficiency; None without a finished run."""
    if not study.curves:
        return None
    many = len(study.curves)
    texts = []
    for curve in study.curves:
        parts = [say("base_line", curve), say("scaling_line", curve)]
        if many > 1:  # of a single curve, the first screen has them
            parts = [f"{headline(study, curve)}.", scaling_answer(study, curve), parts[-1]]
        texts.append(sentence(parts))
    return Section(
        "scaling",
        "Scaling",
        _conclusion(study),
        paragraphs=[*texts, *([say("repeat_plan", plan)] if (plan := repeat_plan(study.curves)) else [])],
        tables=[_table(study), _details(study)],
        figures=_figures(study),
    )


def _conclusion(study: Study) -> str:
    """Range of efficiency beyond the base; empty where the headline states none."""
    if study.forbidden("headline", study.leading_curve):
        return ""
    found = [
        (point.efficiency.value, curve, point)
        for curve in study.curves
        for point in curve.points
        if point.efficiency is not None and not point.is_base
    ]
    if not found:
        return "One size: there is nothing to compare with."
    low, curve, point = min(found, key=lambda each: each[0])
    if len(found) == 1:
        return f"Efficiency is {percent(low, 0)} on {point_name(study, curve, point)}."
    high, best_curve, best = max(found, key=lambda each: each[0])
    if percent(low, 0) == percent(high, 0):
        return f"Efficiency is {percent(low, 0)} on all {len(found)} sizes beyond the base."
    return (
        f"Efficiency lies between {percent(low, 0)} ({point_name(study, curve, point)}) and "
        f"{percent(high, 0)} ({point_name(study, best_curve, best)})."
    )


def _table(study: Study) -> Table:
    columns = [
        *size_columns(study),
        *([] if has_shapes(study) else [Column("shape", "nodes x per node")]),
        Column("step_s", "step", "s", "step-time"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("speedup", "speed-up", "ratio", "speed-up"),
        Column("efficiency", "efficiency", "share", "efficiency"),
    ]
    rows, bases = [], []
    for index, (curve, point) in enumerate(all_points(study)):
        if point.is_base:
            bases.append(index)
        rows.append(
            [
                *size_values(study, curve, point),
                *([] if has_shapes(study) else [point.shape]),
                point.step_s,
                point.samples_per_s,
                *_ratios(point),
            ]
        )
    return Table(
        "scaling",
        f"Scaling by size. Intervals are 95 % over repeats; the base is in bold.{_different_bases(study)}",
        columns,
        rows,
        [sources(point) for curve, point in all_points(study)],
        bases,
    )


def _ratios(point: Point) -> tuple[Value, Value]:
    """Speed-up and efficiency; those of the base are exact."""
    return (1.0, 1.0) if point.is_base else (point.speedup, point.efficiency)


def _details(study: Study) -> Table:
    """What publications print of each size."""
    unit = unit_name(study.curves).removesuffix("s")
    columns = [
        *([] if has_shapes(study) else [Column("shape", "nodes x per node")]),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("tokens_per_s", "tokens", "tokens/s", "throughput"),
        Column("samples_per_s_each", f"throughput per {unit}", "samples/s", "throughput"),
        Column("step_s", "step", "s", "step-time"),
        Column("speedup", "speed-up", "ratio", "speed-up"),
        Column("ideal", "ideal", "ratio", "speed-up"),
        Column("efficiency", "efficiency", "share", "efficiency"),
        Column("communication_share", "communication", "share", "communication-share"),
        Column("messages", "messages a step", "number"),
        Column("peak_bytes", f"memory a {unit}", "B", "peak-memory"),
        Column("gpu_utilization", "GPU busy", "share", "utilization"),
        Column("global_batch_size", "global batch", "count"),
        Column("repeats", "repeats", "count"),
    ]
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for curve, point in all_points(study):
        speedup, efficiency = _ratios(point)
        values: list[Value] = [
            *([] if has_shapes(study) else [point.shape]),
            point.samples_per_s,
            point.tokens_per_s,
            point.samples_per_s.scaled(1 / point.size),
            point.step_s,
            speedup,
            point.size / curve.base.size if curve.base else None,
            efficiency,
            point.phases.share(WAIT, TRANSFER),
            metric("comm.count")(point),
            point.peak_memory_bytes,
            _busy(point),
            point.global_batch_size,
            len(point.runs),
        ]
        rows.append((curve, point, values))
    return size_table(study, "scaling_details", "Each size in detail.", columns, rows)


def _busy(point: Point) -> Estimate | None:
    """Share of the time in which a kernel ran; None on processors."""
    return over_repeats(point, [each.gpu.utilization for each in point.metrics if each.gpu])


def _different_bases(study: Study) -> str:
    """A caution where the curves have no common size of their bases."""
    if len({curve.base and curve.base.size for curve in study.curves}) < 2:
        return ""
    return " The bases have different sizes, so that efficiencies of different configurations do not compare."


def _figures(study: Study) -> list[Figure]:
    """Throughput and efficiency by size, of the curves of several sizes and one program."""
    curves = [curve for curve in study.curves if not curve.other_program]
    if max((len(curve.points) for curve in curves), default=0) < 2:
        return []
    figures = [_throughput_figure(study, curves)]
    if any(curve.base is not None and len(curve.points) > 1 for curve in curves):
        figures.append(_efficiency_figure(study, curves))
    return figures


def _throughput_figure(study: Study, curves: Sequence[Curve]) -> Figure:
    x = _size_axis(curves)
    values = [point.samples_per_s for curve in curves for point in curve.points]
    ideals = []
    for curve in curves:
        if curve.base is not None and len(curve.points) > 1:
            first, last = float(curve.points[0].size), float(curve.points[-1].size)
            rate_of_one = curve.base.samples_per_s.value / curve.base.size
            ideals.append(Guide((first, last), (first * rate_of_one, last * rate_of_one)))
    typical = [*(value.value for value in values), *(guide.ys[1] for guide in ideals)]
    highest = min(max([*(value.high or 0.0 for value in values), *typical]), 1.5 * max(typical))
    lowest = min(value.low or value.value for value in values)
    lowest = max(lowest, min(typical) / 2)
    ends = (0.85 * lowest, 1.15 * highest) if x.log else (0.0, 1.05 * highest)
    y = Axis("throughput (samples/s)", *ends, log=x.log)
    ideals += _full_nodes(curves, y)
    shown = [
        each for c in curves for each in _points(c, [(point, point.samples_per_s) for point in c.points])
    ]
    alt = "Throughput by size, with the ideal line. " + _in_words(
        curves, lambda point: text(point.samples_per_s.value, "samples/s")
    )
    drawing = partial(points, shown, x, y, ideals, emulated=study.emulated)
    return Figure("scaling", "Throughput", drawing, alt, data="scaling")


def _efficiency_figure(study: Study, curves: Sequence[Curve]) -> Figure:
    x = _size_axis(curves)
    shown: list[Points] = []
    for curve in curves:
        known = [(point, point.efficiency) for point in curve.points if point.efficiency]
        shown += _points(curve, [(point, _drawn(point, value)) for point, value in known])
    busy = [each for curve in curves for each in _utilization(study, curve)]
    shown += busy
    values = [value for each in shown for value in each.estimates]
    typical = max([1.0, *(value.value for value in values)])
    highest = min(max([typical, *(value.high or 0.0 for value in values)]), 1.4 * typical)
    y = Axis(
        "efficiency, GPU busy" if busy else "efficiency",
        0.0,
        1.06 * highest,
        form=lambda value: percent(value, 0),
    )
    ideal = Guide((x.low, x.high), (1.0, 1.0))
    alt = "Efficiency by size. " + _in_words(
        curves, lambda point: percent(point.efficiency.value, 0) if point.efficiency else ""
    )
    drawing = partial(points, shown, x, y, [ideal, *_full_nodes(curves, y)], emulated=study.emulated)
    title = "Efficiency and utilization" if busy else "Efficiency"
    return Figure("efficiency", title, drawing, alt, data="scaling_details")


def _utilization(study: Study, curve: Curve) -> list[Points]:
    """Beside the efficiency; empty where none was measured."""
    known = [(point, share) for point in curve.points if (share := _busy(point))]
    label = f"{curve.label}, GPU busy"
    titles = [f"{label}, {curve.name(point)}: {percent(share.value)}" for point, share in known]
    sizes, shares = [float(point.size) for point, _ in known], [share for _, share in known]
    return [Points(label, sizes, shares, titles, joined=False)] if known else []


def _drawn(point: Point, efficiency: Estimate) -> Estimate:
    """That of the base is exact."""
    return replace(efficiency, low=1.0, high=1.0) if point.is_base else efficiency


def _points(curve: Curve, values: Sequence[tuple[Point, Estimate]]) -> list[Points]:
    """The line of a curve, and beside it the other shapes of its sizes."""

    def of(values: Sequence[tuple[Point, Estimate]], label: str, *, joined: bool) -> Points:
        sizes = [float(point.size) for point, _ in values]
        titles = [_tooltip(curve, point) for point, _ in values]
        return Points(label, sizes, [value for _, value in values], titles, joined)

    shapes = {point.shape for point in curve.line}
    beside = [each for each in values if each[0].shape not in shapes]
    line = [each for each in values if each[0].shape in shapes]
    found = [of(line, curve.label, joined=True)]
    return found + ([of(beside, f"{curve.label}, other shapes", joined=False)] if beside else [])


def _full_nodes(curves: Sequence[Curve], y: Axis) -> list[Guide]:
    """A vertical line where the first node is full."""
    sizes = sorted({curve.node_size for curve in curves if curve.node_size})
    return [Guide((size, size), (y.low, y.high), "first node full", ":") for size in sizes]


def _size_axis(curves: Sequence[Curve]) -> Axis:
    """Axis of sizes; logarithmic if the largest is more than 8 times the smallest."""
    sizes = sorted({float(point.size) for curve in curves for point in curve.points})
    label = unit_name(curves)
    if sizes[-1] > _MANY * sizes[0]:
        return Axis(label, sizes[0] / 1.15, sizes[-1] * 1.15, True, sizes, "{:,.0f}".format)
    low = 0.0 if sizes[0] <= 2 else sizes[0] - 0.05 * sizes[-1]
    return Axis(label, low, sizes[-1] * 1.05, False, sizes, "{:,.0f}".format)


def _tooltip(curve: Curve, point: Point) -> str:
    share = f", efficiency {percent(point.efficiency.value)}" if point.efficiency else ""
    return f"{curve.label}, {curve.name(point)}: {cell(point.samples_per_s, 'samples/s').line}{share}"


def _in_words(curves: Sequence[Curve], value: Callable[[Point], str]) -> str:
    return "; ".join(
        f"{curve.label}: "
        + ", ".join(f"{text} on {curve.name(point)}" for point in curve.points if (text := value(point)))
        for curve in curves
    )
