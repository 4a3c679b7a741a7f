"""Scaling: throughput, speed-up and efficiency by size."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis.comparison import repeat_plan
from analysis.draw.points import Guide
from analysis.draw.style import size_axis
from analysis.report.common import (
    all_points,
    has_shapes,
    kept,
    metric,
    point_table,
    points_figure,
    unit_name,
)
from analysis.report.section import Column, Figure, Section, Table
from analysis.report.sentences import say
from analysis.results.claims import claim
from analysis.results.curves import Point
from analysis.results.phases import TRANSFER, WAIT
from analysis.study import Study

ORDER = 20


def build(study: Study) -> Section | None:
    """Tables of all curves, and figures of throughput and efficiency; None without a finished run."""
    if not study.curves:
        return None
    several = len(study.curves) > 1
    texts = kept(
        *(say("scaling_curve", claim(study, curve), several) for curve in study.curves),
        say("repeat_plan", repeat_plan(study.curves)),
    )
    return Section("scaling", "Scaling", "", paragraphs=texts, tables=_tables(study), figures=_figures(study))


def _tables(study: Study) -> list[Table]:
    """The table of the first screen, and what publications print of each size."""
    unit = unit_name(study.curves).removesuffix("s")
    columns = [
        *([] if has_shapes(study) else [Column("shape", "shape")]),
        Column("step_s", "step", "s", "step-time"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("speedup", "speed-up", "ratio", "speed-up"),
        Column("efficiency", "efficiency", "share", "efficiency"),
    ]
    details = [
        Column("tokens_per_s", "tokens", "tokens/s", "throughput"),
        Column(
            "samples_per_s_each",
            f"throughput per {unit}",
            "samples/s",
            "throughput",
            get=lambda point: point.samples_per_s.scaled(1 / point.size),
        ),
        Column(
            "communication_share",
            "communication",
            "share",
            "communication-share",
            get=lambda point: point.phases.share(WAIT, TRANSFER),
        ),
        Column("ideal", "ideal", "ratio", "speed-up", get=_ideal),
        Column("messages", "messages a step", "number", get=metric("comm.count")),
        Column("peak_memory_bytes", f"memory a {unit}", "B", "peak-memory"),
        Column("gpu_utilization", "GPU busy", "share", "utilization", get=metric("gpu.utilization")),
        Column("global_batch_size", "global batch", "count"),
    ]
    several = len({curve.base and curve.base.size for curve in study.curves}) > 1
    first, *others = kept(
        point_table(study, "scaling", say("scaling_table", several), columns),
        point_table(study, "scaling_details", "Each size in detail.", details),
    )
    bases = [at for at, (_, point) in enumerate(all_points(study)) if point.is_base]
    return [replace(first, emphasized=bases), *others]


def _ideal(point: Point) -> float | None:
    return point.speedup.value / point.efficiency.value if point.speedup and point.efficiency else None


def _figures(study: Study) -> list[Figure]:
    """Throughput and efficiency by size, of the curves of several sizes and one program."""
    curves = [curve for curve in study.curves if not curve.other_program]
    places = [(curve, curve.name(point), point) for curve in curves for point in curve.points]
    if len(places) == len(curves):
        return []
    x = size_axis(unit_name(curves), [point.size for *_, point in places])
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
    rates = [(curve.label, name, point.size, point.samples_per_s) for curve, name, point in places]
    throughput = points_figure(
        study,
        "scaling",
        "Throughput",
        rates,
        "samples/s",
        x,
        "throughput (samples/s)",
        "scaling",
        levels=[end for guide in ideals for end in guide.ys],
        log=x.log,
        guides=[*ideals, *full_nodes],
    )
    if not ideals:
        return [throughput]
    busy = metric("gpu.utilization")
    shares = [(curve.label, name, point.size, point.efficiency) for curve, name, point in places]
    shares += [(f"{curve.label}, GPU busy", name, point.size, busy(point)) for curve, name, point in places]
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
