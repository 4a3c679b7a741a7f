"""Configurations of one sweep, compared at equal sizes: the fastest against each of the others."""

from __future__ import annotations

from dataclasses import replace

from analysis.comparison import configurations, options
from analysis.report.common import THROUGHPUT, Column, Section, Study, over_repeats, size_table
from analysis.report.sections.comparison import compared_section
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
from disttrain.config.config_tree import config_fields

ORDER = 50


def build(study: Study) -> Section | None:
    """Verdicts, and throughput, memory and loss of each; None unless a sweep has configurations."""
    compared = configurations(study.leading_curve, study.curves) if study.curves else []
    if not compared:
        return None
    columns = [
        THROUGHPUT,
        _speedup(study, "parallel.strategy"),
        _speedup(study, "precision.dtype"),
        Column("peak_memory_bytes", "memory", "B", "peak-memory"),
        Column("train_loss", "training loss", "loss", "loss", get=lambda at: _loss(at, "train_loss")),
        Column("valid_loss", "validation loss", "loss", "loss", get=lambda at: _loss(at, "valid_loss")),
    ]
    section = compared_section("configurations", "Configurations", study, compared)
    swept = study.leading_curve.axes
    meanings = [f"{key}: {field.description}" for key, field in config_fields() if key in swept]
    sizes = size_table(study, "configuration_sizes", "Configurations by size; memory of a rank.", columns)
    return replace(section, paragraphs=meanings, tables=[*section.tables, sizes])


def _speedup(study: Study, key: str) -> Column:
    """Each value of an option against its base value, where all else is equal."""
    compared = options(study.curves, key)
    ratios = {id(each.point): each.ratio for each in compared}
    bases = " or ".join(dict.fromkeys(str(each.base_curve.axes[key]) for each in compared))
    name = f"{key.rpartition('.')[2]}_speedup"
    heading = f"speed-up over {bases}"
    return Column(name, heading, "ratio", "throughput-ratio", get=lambda point: ratios.get(id(point)))


def _loss(point: Point, name: str) -> Estimate | None:
    """Emulated models learn nothing."""
    return over_repeats(point, [run.final.get(name) for run in point.runs if not run.emulated])
