"""Throughput and step time by batch size of a rank, a line for each configuration that varies it."""

from __future__ import annotations

from dataclasses import replace

from analysis.draw.style import size_axis
from analysis.report.common import (
    all_points,
    kept,
    point_table,
    points_figure,
)
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import Point, labelled, rate_ratio
from analysis.study import Study

ORDER = 170

_BATCH = ("train.local_batch_size", "train.global_batch_size")


def build(study: Study) -> Section | None:
    """None unless a configuration was measured with at least two batch sizes at one size."""
    groups = _by_configuration(study)
    if not groups:
        return None
    ratios = {id(point): rate_ratio(point, first) for first, *others in groups.values() for point in others}
    columns = [
        Column("local_batch_size", "batch of a rank", "count", key=True),
        Column("global_batch_size", "global batch", "count"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("step_s", "step", "s", "step-time"),
        Column(
            "ratio",
            "of the smallest batch",
            "ratio",
            "throughput-ratio",
            get=lambda point: ratios.get(id(point)),
        ),
    ]
    caption = "Throughput by batch size, compared within a configuration."
    curve_of = {id(point): curve for curve, point in all_points(study)}
    items = [(curve_of[id(point)], point, point) for group in groups.values() for point in group]
    rows = [
        (name, f"batch {point.local_batch_size}", point.local_batch_size, point.samples_per_s)
        for name, group in groups.items()
        for point in group
    ]
    x = size_axis("batch size of a rank", [at for _, _, at, _ in rows])
    title, heading = "Throughput by batch size", "throughput (samples/s)"
    figure = points_figure(
        study, "batch_throughput", title, rows, "samples/s", x, heading, "batch_size", levels=[0.0]
    )
    best = max(groups, key=lambda name: max(point.samples_per_s.value / point.size for point in groups[name]))
    small, *_, large = groups[best]
    return Section(
        "batch-size",
        "Batch size",
        say("batch_size", best, small.local_batch_size, large.local_batch_size, rate_ratio(large, small)),
        tables=kept(point_table(study, "batch_size", caption, columns, items)),
        figures=[figure],
    )


def _by_configuration(study: Study) -> dict[str, list[Point]]:
    """Points of several batches of a rank, smallest first, by configuration without its batch and size."""
    groups: dict[str, list[Point]] = {}
    without = [replace(curve, axes=curve.axes | dict.fromkeys(_BATCH)) for curve in study.curves]
    for curve, name in zip(study.curves, labelled(without), strict=True):
        for point in curve.points:
            groups.setdefault(f"{name.label}, {curve.name(point)}", []).append(point)
    ordered = {
        name: sorted(group, key=lambda point: point.local_batch_size) for name, group in groups.items()
    }
    return {
        name: group
        for name, group in ordered.items()
        if group[0].local_batch_size < group[-1].local_batch_size
    }
