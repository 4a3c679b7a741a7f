"""Scaling: throughput, speed-up and efficiency by size; throughput and step time by batch size of a rank."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis.comparison import repeat_plan
from analysis.draw.charts import Guide
from analysis.draw.style import size_axis
from analysis.read.record import read_record
from analysis.report.common import (
    STEP,
    THROUGHPUT,
    Column,
    Figure,
    Place,
    Section,
    Study,
    Table,
    has_shapes,
    metric,
    places,
    points_figure,
    say,
    size_table,
    unit_name,
)
from analysis.report.sections.comparison import option_speedup
from analysis.report.sections.hardware import GPU_BUSY
from analysis.results.caveats import claim
from analysis.results.communication import exposed_share
from analysis.results.curves import Point, labelled, rate_ratio
from analysis.stats.estimates import Estimate
from disttrain.records.planned import SweepRecord


def scaling(study: Study) -> Section | None:
    """Tables of all curves, and figures of throughput and efficiency; None without a finished run."""
    if not study.curves:
        return None
    several = len(study.curves) > 1
    texts = [say("scaling_curve", claim(study, curve), several) for curve in study.curves]
    folders = dict.fromkeys(run.folder.path.parent for run in study.runs)
    records = [read_record(folder / "sweep.json", SweepRecord)[0] for folder in folders]
    rules = [record.repeats for record in records if record and record.repeats]
    texts.append(say("repeat_plan", repeat_plan(study.curves), rules))
    return Section("scaling", "Scaling", paragraphs=texts, tables=_tables(study), figures=_figures(study))


def _tables(study: Study) -> list[Table]:
    """The table of the first screen, and what publications print of each size."""
    unit = unit_name(study.curves).removesuffix("s")
    columns = [
        *([] if has_shapes(study) else [Column("shape")]),
        STEP,
        THROUGHPUT,
        Column("speedup", "speed-up", "ratio", "speed-up"),
        Column("efficiency", "efficiency", "share", "efficiency"),
    ]
    each = replace(THROUGHPUT, name="samples_per_s_each", heading=f"throughput per {unit}", get=_each)
    details = [
        Column("tokens_per_s", "tokens", "tokens/s", "throughput"),
        each,
        Column("communication_share", "communication", "share", "communication-share", get=exposed_share),
        Column("ideal", "ideal", "ratio", "speed-up", get=_ideal),
        Column("messages", "messages a step", "number", get=metric("comm.count")),
        Column("peak_memory_bytes", f"memory a {unit}", "B", "peak-memory"),
        GPU_BUSY,
        Column("global_batch_size", "global batch", "count"),
        option_speedup(study, "parallel.strategy"),
        option_speedup(study, "precision.dtype"),
    ]
    several = len({curve.base and curve.base.size for curve in study.curves}) > 1
    bases = [at for at, place in enumerate(places(study)) if place.point.is_base]
    return [
        replace(size_table(study, "scaling", say("scaling_table", several), columns), emphasized=bases),
        size_table(study, "scaling_details", "Each size in detail.", details),
    ]


def _each(point: Point) -> Estimate:
    return point.samples_per_s.scaled(1 / point.size)


def _ideal(point: Point) -> float | None:
    return point.speedup.value / point.efficiency.value if point.speedup and point.efficiency else None


def _figures(study: Study) -> list[Figure]:
    """Throughput and efficiency by size, of the curves of several sizes and one program."""
    curves = [curve for curve in study.curves if not curve.other_program]
    shown = [
        (curve.label, curve.name(point), point.size, point) for curve in curves for point in curve.points
    ]
    if len(shown) == len(curves):  # sizes to compare are needed
        return []
    x = size_axis(unit_name(curves), [size for _, _, size, _ in shown])
    full_nodes = [
        Guide((size, size), (-math.inf, math.inf), "first node full", ":")
        for size in {curve.node_size for curve in curves}
        if size
    ]
    ideals = []
    for curve in curves:
        if curve.base:
            ends = curve.points[0].size, curve.points[-1].size
            rate = curve.base.samples_per_s.value / curve.base.size
            ideals.append(Guide(ends, (ends[0] * rate, ends[1] * rate)))
    throughput = points_figure(
        study,
        "scaling",
        "Throughput",
        [(*at, point.samples_per_s) for *at, point in shown],
        "samples/s",
        x,
        "throughput (samples/s)",
        levels=[end for guide in ideals for end in guide.ys],
        log=x.log,
        guides=[*ideals, *full_nodes],
    )
    if not ideals:
        return [throughput]
    shares = [(*at, point.efficiency) for *at, point in shown]
    shares += [(f"{label}, GPU busy", *at, GPU_BUSY.of(point)) for label, *at, point in shown]
    efficiency = points_figure(
        study,
        "efficiency",
        "Efficiency",
        shares,
        "share",
        x,
        "efficiency",
        "scaling",
        levels=(0.0, 1.0),
        guides=[Guide((x.low, x.high), (1.0, 1.0)), *full_nodes],
    )
    return [throughput, efficiency]


_BATCH = ("train.local_batch_size", "train.global_batch_size")


def batch_size(study: Study) -> Section | None:
    """None unless a configuration was measured with at least two batch sizes at one size."""
    groups = _by_configuration(study)
    if not groups:
        return None
    columns = [
        Column("local_batch_size", "batch of a rank", "count", key=True),
        Column("global_batch_size", "global batch", "count"),
        THROUGHPUT,
        STEP,
        Column("ratio", "of the smallest batch", "ratio", "throughput-ratio"),
    ]
    caption = "Throughput by batch size, compared within a configuration."
    items, rows = [], []
    for name, group in groups.items():
        for place in group:
            point, batch, first = place.point, place.point.local_batch_size, group[0].point
            ratio = None if point is first else rate_ratio(point, first)
            items.append((place, vars(point) | {"ratio": ratio}))
            rows.append((name, f"batch {batch}", batch, point.samples_per_s))
    x = size_axis("batch size of a rank", [at for _, _, at, _ in rows])
    title, heading = "Throughput by batch size", "throughput (samples/s)"
    figure = points_figure(
        study, "batch_throughput", title, rows, "samples/s", x, heading, "batch_size", levels=[0.0]
    )
    best = max(
        groups, key=lambda name: max(at.point.samples_per_s.value / at.point.size for at in groups[name])
    )
    small, *_, large = (place.point for place in groups[best])
    return Section(
        "batch-size",
        "Batch size",
        say("batch_size", best, small.local_batch_size, large.local_batch_size, rate_ratio(large, small)),
        tables=[size_table(study, "batch_size", caption, columns, items)],
        figures=[figure],
    )


def _by_configuration(study: Study) -> dict[str, list[Place]]:
    """Sizes of several batches of a rank, smallest first, by configuration without its batch and size."""
    groups: dict[str, list[Place]] = {}
    without = labelled([replace(curve, axes=curve.axes | dict.fromkeys(_BATCH)) for curve in study.curves])
    labels = {curve.label: name.label for curve, name in zip(study.curves, without, strict=True)}
    for place in sorted(places(study), key=lambda place: place.point.local_batch_size):
        name = f"{labels[place.curve.label]}, {place.curve.name(place.point)}"
        groups.setdefault(name, []).append(place)
    return {
        name: group
        for name, group in groups.items()
        if len({place.point.local_batch_size for place in group}) > 1
    }


SECTIONS = {20: scaling, 170: batch_size}
