"""Throughput and step latency by batch size of a rank, where the runs vary it."""

from __future__ import annotations

from functools import partial

from analysis.draw.points import Points, points
from analysis.draw.style import Axis
from analysis.report.common import all_points, sources
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.results.curves import Curve, Point
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import number, plural, seconds

ORDER = 170

Sized = dict[int, list[tuple[Curve, Point]]]
"""Points by number of ranks, smallest batch first."""


def build(study: Study) -> Section | None:
    """None unless a number of ranks was measured with at least two batch sizes, and sizes of the batch vary
    independently of the number of ranks."""
    by_world: Sized = {}
    for curve, point in sorted(all_points(study), key=lambda each: each[1].local_batch_size):
        by_world.setdefault(point.world_size, []).append((curve, point))
    shown = {
        world: found
        for world, found in sorted(by_world.items())
        if len({p.local_batch_size for _, p in found}) > 1
    }
    if not shown:
        return None
    rows: list[list[Value]] = []
    links = []
    for world, found in shown.items():
        for curve, point in found:
            batch = [world, point.local_batch_size, point.global_batch_size]
            rows.append([curve.label, *batch, point.samples_per_s, point.step_s])
            links.append(sources(study, curve, point))
    table = Table(
        "batch_size",
        "Throughput and step latency by batch size.",
        [
            Column("curve", "configuration"),
            Column("ranks", "ranks", "count"),
            Column("local_batch_size", "batch of a rank", "count"),
            Column("global_batch_size", "global batch", "count"),
            Column("samples_per_s", "throughput", "samples/s", "throughput"),
            Column("step_s", "step", "s", "step-time"),
        ],
        rows,
        links,
    )
    best_world, best = max(
        ((world, point) for world, found in shown.items() for _, point in found),
        key=lambda each: each[1].samples_per_s.value / each[0],
    )
    conclusion = (
        f"The most samples per second and rank come with a batch of {best.local_batch_size} a rank, on "
        f"{plural(best_world, 'rank')}: {number(best.samples_per_s.value)} samples/s at "
        f"{seconds(best.step_s.value)} a step."
    )
    figures = [
        _figure(study, "batch_throughput", "throughput (samples/s)", shown, throughput=True),
        _figure(study, "batch_latency", "step latency (s)", shown, throughput=False),
    ]
    return Section("batch-size", "Batch size", conclusion, tables=[table], figures=figures)


def _figure(study: Study, name: str, label: str, shown: Sized, *, throughput: bool) -> Figure:
    def value(point: Point) -> Estimate:
        return point.samples_per_s if throughput else point.step_s

    every = [point for found in shown.values() for _, point in found]
    batches = sorted({float(point.local_batch_size) for point in every})
    highest = max(value(point).high or value(point).value for point in every)
    highest = min(highest, 1.5 * max(value(point).value for point in every))
    title = "Throughput by batch size" if throughput else "Step latency by batch size"
    x = Axis("batch size of a rank", batches[0] / 1.15, batches[-1] * 1.15, True, batches, "{:,.0f}".format)
    form = (lambda v: f"{number(v)} samples/s") if throughput else seconds
    lines = []
    for world, found in shown.items():
        titles = [
            f"{curve.label}, {plural(world, 'rank')}, batch {point.local_batch_size}: "
            f"{form(value(point).value)}, n={len(point.runs)}"
            for curve, point in found
        ]
        xs = [float(point.local_batch_size) for _, point in found]
        lines.append(Points(plural(world, "rank"), xs, [value(point) for _, point in found], titles))
    alt = "; ".join(title for each in lines for title in each.titles)
    drawing = partial(points, lines, x, Axis(label, 0.0, 1.06 * highest), emulated=study.emulated)
    return Figure(name, title, drawing, alt, data="batch_size")
