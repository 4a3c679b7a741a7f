"""Throughput and step time by batch size of a rank, a line for each configuration that varies it."""

from __future__ import annotations

from dataclasses import replace

from analysis.draw.style import size_axis
from analysis.report.common import (
    STEP,
    THROUGHPUT,
    Column,
    Place,
    Section,
    Study,
    places,
    points_figure,
    say,
    size_table,
)
from analysis.results.curves import labelled, rate_ratio

ORDER = 170

_BATCH = ("train.local_batch_size", "train.global_batch_size")


def build(study: Study) -> Section | None:
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
