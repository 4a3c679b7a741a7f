"""Scaling: throughput, speed-up and efficiency by size."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.efficiency import Curve, Point
from analysis.figures.scaling_figures import efficiency_figure, scaling_figure
from analysis.figures.style import curve_class
from analysis.report import scaling_text
from analysis.report.cells import cell
from analysis.report.common import (
    all_points,
    bars_text,
    interval_basis,
    point_name,
    sentence,
    size_columns,
    size_values,
    sources,
)
from analysis.report.headline import headline, scaling_answer
from analysis.report.section import Column, Figure, Section, Table
from analysis.study import Study
from analysis.svg.lines import line, points
from analysis.svg.plot import LegendItem, Plot
from analysis.svg.scales import Axis
from analysis.units import bounds, number, percent, plural, rate

_MANY = 8
"""Ratio of the largest to the smallest size above which axes are logarithmic."""


def build(study: Study) -> Section | None:
    """Table of all curves, and the figure of efficiency; None without a finished run."""
    if not study.curves:
        return None
    many = len(study.curves)
    texts = []
    for curve in study.curves:
        parts = [scaling_text.base_line(curve), scaling_text.scaling_line(curve)]
        if many > 1:  # of a single curve, the first screen has them
            parts = [f"{headline(study, curve)}.", scaling_answer(study, curve), parts[-1]]
        texts.append(sentence(parts))
    figures = [figure for figure in (throughput_figure(study), _efficiency_figure(study)) if figure]
    return Section(
        "scaling",
        "Scaling",
        _conclusion(study),
        paragraphs=texts,
        tables=[_table(study)],
        figures=figures,
    )


def _conclusion(study: Study) -> str:
    """Range of efficiency beyond the base."""
    found = [
        (point.efficiency.value, curve, point)
        for curve in study.curves
        for point in curve.points
        if point.efficiency is not None and point.size != curve.base_size
    ]
    if not found:
        return "One size: there is nothing to compare with."
    low, curve, point = min(found, key=lambda each: each[0])
    if len(found) == 1:
        return f"Efficiency is {percent(low, 0)} on {point_name(study, curve, point)}."
    high, best_curve, best = max(found, key=lambda each: each[0])
    return (
        f"Efficiency lies between {percent(low, 0)} ({point_name(study, curve, point)}) and "
        f"{percent(high, 0)} ({point_name(study, best_curve, best)})."
    )


def _table(study: Study) -> Table:
    columns = [
        *size_columns(study),
        Column("ranks", "ranks", "count"),
        Column("step_s", "step", "s", "step-time"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("speedup", "speed-up", "ratio", "speed-up"),
        Column("efficiency", "efficiency", "share", "efficiency"),
        Column("global_batch_size", "global batch", "count"),
        Column("repeats", "repeats", "count"),
    ]
    rows, bases = [], []
    for index, (curve, point) in enumerate(all_points(study)):
        base = point.size == curve.base_size
        speedup, efficiency = (1.0, 1.0) if base else (point.speedup, point.efficiency)
        if base:
            bases.append(index)
        rows.append(
            [
                *size_values(study, curve, point),
                point.world_size,
                point.step_s,
                point.samples_per_s,
                speedup,
                efficiency,
                point.global_batch_size,
                len(point.runs),
            ]
        )
    return Table(
        "scaling",
        f"Scaling by size, with {interval_basis(point.samples_per_s for _, point in all_points(study))}. The "
        f"base is in bold.{_different_bases(study)}",
        columns,
        rows,
        [sources(study, curve, point) for curve, point in all_points(study)],
        bases,
    )


def _different_bases(study: Study) -> str:
    """A caution where the curves have no common size of their bases."""
    if len({curve.base_size for curve in study.curves}) < 2:
        return ""
    return " The bases have different sizes, so that efficiencies of different configurations do not compare."


def throughput_figure(study: Study) -> Figure | None:
    """Throughput by size with the ideal line; None without a curve of several sizes and one program."""
    curves = [curve for curve in study.curves if not curve.other_program]
    if max((len(curve.points) for curve in curves), default=0) < 2:
        return None
    values = [point.samples_per_s for curve in curves for point in curve.points]
    ideals = [
        curve.base.samples_per_s.value * curve.points[-1].size / curve.base.size
        for curve in curves
        if curve.base is not None
    ]
    highest = max([*(value.high or value.value for value in values), *ideals])
    highest = min(highest, 1.5 * max([*(value.value for value in values), *ideals]))
    x = size_axis(curves)
    lowest = min(value.low or value.value for value in values)
    y = (
        Axis("throughput (samples/s)", 0.85 * lowest, 1.15 * highest, log=True)
        if x.log
        else Axis("throughput (samples/s)", 0.0, 1.05 * highest)
    )
    plot = Plot("throughput", "Throughput by size", _description(curves), x, y, _legend(curves))
    for index, curve in enumerate(curves):
        sizes = [float(point.size) for point in curve.points]
        if curve.base is not None and len(sizes) > 1:
            per_unit = curve.base.samples_per_s.value / curve.base.size
            plot.add(line(plot, sizes, [per_unit * size for size in sizes], "faint", style="dashes"))
        colour = curve_class(index)
        plot.add(
            line(
                plot,
                sizes,
                [point.samples_per_s.value for point in curve.points],
                colour,
                style="pale",
                key=curve.label,
            )
        )
        titles = [_tooltip(curve, point) for point in curve.points]
        plot.add(
            points(
                plot, sizes, [point.samples_per_s for point in curve.points], colour, titles, key=curve.label
            )
        )
    return Figure(
        "scaling",
        "Throughput",
        _throughput_finding(study),
        plot.svg(),
        _description(curves),
        lambda: scaling_figure(curves),
        sentence(
            [
                "The dashed line is the base times the size, the most that these ranks could reach.",
                bars_text(values),
                "Pale lines guide the eye.",
            ]
        ),
        data="scaling",
    )


def _throughput_finding(study: Study) -> str:
    """Throughput of the largest size of the leading curve."""
    curve = study.leading_curve
    point = curve.points[-1]
    ideal = ""
    if point.efficiency is not None and point.size != curve.base_size:
        ideal = f", {percent(point.efficiency.value, 0)} of the ideal line"
    rate = cell(point.samples_per_s, "samples/s").in_text
    return f"The throughput on {point_name(study, curve, point)} is {rate}{ideal}."


def _efficiency_figure(study: Study) -> Figure | None:
    compared = [curve for curve in study.curves if curve.base is not None and len(curve.points) > 1]
    if not compared:
        return None
    values = [point.efficiency for curve in compared for point in curve.points if point.efficiency]
    highest = min(
        max([1.0, *(each.high or each.value for each in values)]),
        1.4 * max([1.0, *(each.value for each in values)]),
    )
    y = Axis("efficiency", 0.0, 1.06 * highest, form=lambda value: percent(value, 0))
    description = "; ".join(
        f"{curve.label}: "
        + ", ".join(
            f"{percent(point.efficiency.value, 0)} on {plural(point.size, curve.unit)}"
            for point in curve.points
            if point.efficiency
        )
        for curve in compared
    )
    plot = Plot(
        "efficiency", "Efficiency by size", description, size_axis(compared), y, _legend(study.curves)
    )
    plot.add(line(plot, [plot.x.low, plot.x.high], [1.0, 1.0], "faint", style="dashes"))
    for index, curve in enumerate(study.curves):
        if curve not in compared:
            continue
        found = [(point, each) for point in curve.points if (each := point.efficiency) is not None]
        sizes, estimates = [float(point.size) for point, _ in found], [each for _, each in found]
        titles = [_tooltip(curve, point) for point, _ in found]
        plot.add(
            line(
                plot,
                sizes,
                [each.value for each in estimates],
                curve_class(index),
                style="pale",
                key=curve.label,
            )
        )
        plot.add(points(plot, sizes, estimates, curve_class(index), titles, key=curve.label))
    return Figure(
        "efficiency",
        "Efficiency",
        _efficiency_finding(study, max(compared, key=lambda curve: curve.points[-1].samples_per_s.value)),
        plot.svg(),
        description,
        lambda: efficiency_figure(study.curves),
        sentence(["Share of the ideal throughput at each size; the axis starts at zero.", bars_text(values)]),
        data="scaling",
    )


def _efficiency_finding(study: Study, curve: Curve) -> str:
    """Whether the efficiency of the largest size that is not the base differs from 100 %."""
    point = next(point for point in reversed(curve.points) if point.size != curve.base_size)
    found = point.efficiency
    assert found is not None
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        verdict = "cannot be told from 100 %"
    else:
        verdict = f"lies {'below' if found.high < 1 else 'above'} 100 % by its whole interval"
    text = f"The efficiency on {point_name(study, curve, point)} {verdict}"
    return f"{text}: {cell(found, 'share').in_text}."


def size_axis(curves: Sequence[Curve]) -> Axis:
    """Axis of sizes; logarithmic if the largest is more than 8 times the smallest."""
    sizes = sorted({point.size for curve in curves for point in curve.points})
    units = {curve.unit for curve in curves}
    label = f"{units.pop()}s" if len(units) == 1 else "nodes or ranks"
    ticks = [float(size) for size in sizes]
    if sizes[-1] > _MANY * sizes[0]:
        return Axis(label, sizes[0] / 1.15, sizes[-1] * 1.15, True, ticks, _whole)
    low = 0.0 if sizes[0] <= 2 else sizes[0] - 0.05 * sizes[-1]
    return Axis(label, low, sizes[-1] * 1.05, False, ticks, _whole)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _legend(curves: Sequence[Curve]) -> list[LegendItem]:
    ideal = LegendItem("ideal", "faint", "dashes")
    if len(curves) == 1:
        return [LegendItem("measured", curve_class(0)), ideal]
    return [
        *(LegendItem(curve.label, curve_class(i), key=curve.label) for i, curve in enumerate(curves)),
        ideal,
    ]


def _tooltip(curve: Curve, point: Point) -> str:
    x = point.samples_per_s
    interval = "" if x.low is None or x.high is None else f" {bounds(number(x.low), number(x.high))}"
    share = f", efficiency {percent(point.efficiency.value)}" if point.efficiency else ""
    return f"{curve.label}, {plural(point.size, curve.unit)}: {rate(x.value)}{interval}{share}, n={x.repeats}"


def _description(curves: Sequence[Curve]) -> str:
    return "Throughput by size, with the ideal line. " + "; ".join(
        f"{curve.label}: "
        + ", ".join(
            f"{rate(point.samples_per_s.value)} on {plural(point.size, curve.unit)}" for point in curve.points
        )
        for curve in curves
    )
