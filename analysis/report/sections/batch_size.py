"""Throughput and step latency by batch size of a rank, where the runs vary it."""

from __future__ import annotations

from analysis.efficiency import Curve, Point, rate_ratio
from analysis.figures.batch_figure import batch_figure
from analysis.figures.style import curve_class
from analysis.report.cells import cell
from analysis.report.common import all_points, sources
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.svg.lines import line, points
from analysis.svg.plot import LegendItem, Plot
from analysis.svg.scales import Axis
from analysis.units import number, plural, seconds

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
        _figure(study, "batch_throughput", "throughput (samples/s)", shown, best_world, throughput=True),
        _figure(study, "batch_latency", "step latency (s)", shown, best_world, throughput=False),
    ]
    return Section("batch-size", "Batch size", conclusion, tables=[table], figures=figures)


def _change(world: int, found: list[tuple[Curve, Point]], *, throughput: bool) -> str:
    """Ratio of throughput, or of step time, from the smallest to the largest batch of a rank."""
    (_, small), (_, large) = found[0], found[-1]
    ratio = rate_ratio(large, small)
    name = "throughput"
    if not throughput:
        name, ratio = "step", ratio.inverse(large.global_batch_size / small.global_batch_size)
    size = f"{large.local_batch_size / small.local_batch_size:.3g} times the batch of a rank"
    span = f"{small.local_batch_size} to {large.local_batch_size}"
    change = cell(ratio, "ratio").in_text
    return f"On {plural(world, 'rank')}, {size} ({span}) gives {change} the {name}."


def _figure(
    study: Study, name: str, label: str, shown: Sized, best_world: int, *, throughput: bool
) -> Figure:
    def value(point: Point) -> Estimate:
        return point.samples_per_s if throughput else point.step_s

    every = [point for found in shown.values() for _, point in found]
    batches = sorted({float(point.local_batch_size) for point in every})
    highest = max(value(point).high or value(point).value for point in every)
    highest = min(highest, 1.5 * max(value(point).value for point in every))
    title = "Throughput by batch size" if throughput else "Step latency by batch size"
    x = Axis(
        "batch size of a rank",
        batches[0] / 1.15,
        batches[-1] * 1.15,
        True,
        batches,
        lambda each: f"{each:.0f}",
    )
    legend = [LegendItem(plural(world, "rank"), curve_class(i)) for i, world in enumerate(shown)]
    finding = _change(best_world, shown[best_world], throughput=throughput)
    plot = Plot(name, title, finding, x, Axis(label, 0.0, 1.06 * highest), legend)
    for index, (world, found) in enumerate(shown.items()):
        xs = [float(point.local_batch_size) for _, point in found]
        estimates = [value(point) for _, point in found]
        form = (lambda v: f"{number(v)} samples/s") if throughput else seconds
        titles = [
            f"{curve.label}, {plural(world, 'rank')}, batch {point.local_batch_size}: "
            f"{form(value(point).value)}, "
            f"n={len(point.runs)}"
            for curve, point in found
        ]
        plot.add(line(plot, xs, [each.value for each in estimates], curve_class(index), style="pale"))
        plot.add(points(plot, xs, estimates, curve_class(index), titles))
    reading = (
        "A curve that flattens has filled the device."
        if throughput
        else "Latency that grows in proportion to the batch gains nothing."
    )
    lines = {
        plural(world, "rank"): [(point.local_batch_size, value(point)) for _, point in found]
        for world, found in shown.items()
    }
    return Figure(
        name,
        title,
        finding,
        plot.svg(),
        finding,
        lambda: batch_figure(lines, label, emulated=study.emulated),
        reading,
        data="batch_size",
    )
