"""Configurations of one sweep, compared at equal sizes: the fastest against each of the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from analysis.comparison import configurations, options
from analysis.report.common import all_points, kept, over_repeats, point_table
from analysis.report.section import Column, Section, Table
from analysis.report.sections.comparison import compared_section
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from analysis.study import Study
from disttrain.config.config_tree import config_fields

ORDER = 50


def build(study: Study) -> Section | None:
    """Verdicts, and each value of the strategy and the precision; None unless a sweep has configurations."""
    compared = configurations(study.leading_curve, study.curves) if study.curves else []
    if not compared:
        return None
    section = compared_section("configurations", "Configurations", study, compared)
    swept = study.leading_curve.axes
    meanings = [f"{key}: {field.description}" for key, field in config_fields() if key in swept]
    strategies = _values(study, "strategy_sizes", "parallel.strategy")
    precisions = _values(study, "precision_sizes", "precision.dtype")
    return replace(section, paragraphs=meanings, tables=kept(*section.tables, strategies, precisions))


def _values(study: Study, name: str, key: str) -> Table | None:
    """Throughput, memory, loss and speed-up of each value of a swept option; None where it is not swept."""
    compared = options(study.curves, key)
    ratios: dict[int, float | Estimate] = {id(each.base): 1.0 for each in compared}
    ratios |= {id(each.point): each.ratio for each in compared}
    bases = " or ".join(dict.fromkeys(str(each.base_curve.axes[key]) for each in compared))
    columns = [
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column(
            "speedup",
            f"speed-up over {bases}",
            "ratio",
            "throughput-ratio",
            get=lambda point: ratios[id(point)],
        ),
        Column("peak_memory_bytes", "memory", "B", "peak-memory"),
        Column("train_loss", "training loss", "loss", "loss", get=partial(_loss, name="train_loss")),
        Column("valid_loss", "validation loss", "loss", "loss", get=partial(_loss, name="valid_loss")),
    ]
    items = [(curve, point, point) for curve, point in all_points(study) if id(point) in ratios]
    return point_table(study, name, "Each value of the option, by size; memory of a rank.", columns, items)


def _loss(point: Point, name: str) -> Estimate | None:
    """Emulated models learn nothing."""
    return over_repeats(point, [run.final.get(name) for run in point.runs if not run.emulated])
