"""Throughput and step time by batch size of a rank, a line for each configuration that varies it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from analysis.draw.points import Points, points
from analysis.draw.style import Axis
from analysis.report.common import sources
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.curves import Curve, Point, rate_ratio
from analysis.study import Study
from analysis.units import cell, number

ORDER = 170

_BATCH = frozenset({"train.local_batch_size", "train.global_batch_size"})
Sizes = list[tuple[Curve, Point]]
"""Points of one configuration and shape, smallest batch first."""


def build(study: Study) -> Section | None:
    """None unless a configuration was measured with at least two batch sizes at one size."""
    shown = by_configuration(study.curves)
    if not shown:
        return None
    rows: list[list[Value]] = [
        [
            name,
            point.local_batch_size,
            point.global_batch_size,
            point.samples_per_s,
            point.step_s,
            None if point is sizes[0][1] else rate_ratio(point, sizes[0][1]),
        ]
        for name, sizes in shown.items()
        for _, point in sizes
    ]
    columns = [
        Column("configuration", "configuration"),
        Column("local_batch_size", "batch of a rank", "count", key=True),
        Column("global_batch_size", "global batch", "count"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("step_s", "step", "s", "step-time"),
        Column("ratio", "of the smallest batch", "ratio", "throughput-ratio"),
    ]
    links = [sources(point) for sizes in shown.values() for curve, point in sizes]
    caption = "Throughput by batch size, compared within a configuration."
    table = Table("batch_size", caption, columns, rows, links)
    name, best = max(shown.items(), key=lambda each: max(_per_device(point) for _, point in each[1]))
    (_, small), (_, large) = best[0], best[-1]
    ratio = rate_ratio(large, small)
    batches = (small.local_batch_size, large.local_batch_size)
    conclusion = say("batch_size", name, *batches, cell(ratio, "ratio").in_text)
    return Section("batch-size", "Batch size", conclusion, tables=[table], figures=[_figure(study, shown)])


def by_configuration(curves: Sequence[Curve]) -> dict[str, Sizes]:
    """Points by configuration without its batch and by shape, of those with several batches of a rank."""
    groups: dict[tuple[object, ...], Sizes] = {}
    for curve in curves:
        rest = tuple((key, str(value)) for key, value in curve.axes.items() if key not in _BATCH)
        for point in curve.points:
            group = groups.setdefault((curve.sweep, curve.emulated, rest, point.size, point.nodes), [])
            group.append((curve, point))
    found: dict[str, Sizes] = {}
    for group in groups.values():
        group.sort(key=lambda each: each[1].local_batch_size)
        if group[0][1].local_batch_size < group[-1][1].local_batch_size:
            curve, point = group[0]
            found[_name(curve, curves, curve.name(point))] = group
    return found


def _name(curve: Curve, curves: Sequence[Curve], size: str) -> str:
    """The values by which a configuration differs from others, its batch left out, and the size."""
    values = [
        f"{key.rpartition('.')[2]} {value}"
        for key, value in curve.axes.items()
        if key not in _BATCH and len({str(each.axes.get(key)) for each in curves}) > 1
    ]
    several = len({each.sweep for each in curves}) > 1
    kind = ["emulated" if curve.emulated else "real"] if len({each.emulated for each in curves}) > 1 else []
    return ", ".join([*([curve.sweep] if several else []), *values, *kind, size])


def _per_device(point: Point) -> float:
    return point.samples_per_s.value / point.size


def _figure(study: Study, shown: dict[str, Sizes]) -> Figure:
    rates = [point.samples_per_s for sizes in shown.values() for _, point in sizes]
    batches = sorted({float(point.local_batch_size) for sizes in shown.values() for _, point in sizes})
    highest = min(max(each.high or each.value for each in rates), 1.5 * max(each.value for each in rates))
    x = Axis("batch size of a rank", batches[0] / 1.15, batches[-1] * 1.15, True, batches, "{:,.0f}".format)
    lines = []
    for name, sizes in shown.items():
        xs = [float(point.local_batch_size) for _, point in sizes]
        titles = [
            f"{name}, batch {point.local_batch_size}: {number(point.samples_per_s.value)} samples/s"
            for _, point in sizes
        ]
        lines.append(Points(name, xs, [point.samples_per_s for _, point in sizes], titles))
    alt = "; ".join(title for each in lines for title in each.titles)
    y = Axis("throughput (samples/s)", 0.0, 1.06 * highest)
    drawing = partial(points, lines, x, y, emulated=study.emulated)
    return Figure("batch_throughput", "Throughput by batch size", drawing, alt, data="batch_size")
