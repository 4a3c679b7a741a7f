"""Configurations of one sweep, compared at equal sizes: the fastest against each of the others."""

from __future__ import annotations

from dataclasses import replace

from analysis.comparison import configurations, options
from analysis.report.common import Column, Section, Study
from analysis.report.sections.comparison import compared_section
from disttrain.config.config_tree import config_fields

ORDER = 50


def build(study: Study) -> Section | None:
    """None unless a sweep has configurations."""
    compared = configurations(study.leading_curve, study.curves) if study.curves else []
    if not compared:
        return None
    section = compared_section("configurations", "Configurations", study, compared)
    swept = study.leading_curve.axes
    meanings = [f"{key}: {field.description}" for key, field in config_fields() if key in swept]
    return replace(section, paragraphs=meanings)


def option_speedup(study: Study, key: str) -> Column:
    """Each value of an option against its base value, where all else is equal."""
    compared = options(study.curves, key)
    ratios = {id(each.point): each.ratio for each in compared}
    bases = " or ".join(dict.fromkeys(str(each.base_curve.axes[key]) for each in compared))
    name = f"{key.rpartition('.')[2]}_speedup"
    heading = f"speed-up over {bases}"
    return Column(name, heading, "ratio", "throughput-ratio", get=lambda point: ratios.get(id(point)))
