"""Configurations of one sweep, compared at equal sizes: the fastest against each of the others."""

from __future__ import annotations

from analysis import comparison
from analysis.comparison import PointComparison
from analysis.report import comparison_parts
from analysis.report.section import Section
from analysis.report.sentences import say
from analysis.study import Study
from disttrain.config.config_tree import config_fields

ORDER = 50


def build(study: Study) -> Section | None:
    """Ratios of throughput; None unless a sweep has configurations that differ in more than the strategy."""
    compared = _compared(study)
    if not compared:
        return None
    return comparison_parts.section(
        "configurations",
        "Configurations",
        study,
        compared,
        paragraphs=_meanings(study),
        tables=comparison_parts.option_tables(study, "precision_sizes", comparison.PRECISION),
    )


def nearest(study: Study) -> str:
    """Ratio of the leading configuration to the next one at its largest size; empty without another."""
    largest = study.leading_curve.points[-1]
    others = [each for each in _compared(study) if each.point is largest]
    nearest_one = min(others, key=lambda each: each.ratio.value, default=None)
    return say("verdicts", comparison_parts.verdict_groups([nearest_one]), 1) if nearest_one else ""


def _meanings(study: Study) -> list[str]:
    """What the swept options set, by the names that label the configurations."""
    known = {key: field.description or "" for key, field in config_fields()}
    lead = study.leading_curve
    found = []
    for key, value in lead.axes.items():
        name, meaning = key.rpartition(".")[2], known.get(key, "").partition(".")[0].partition(";")[0]
        if meaning and f"{name} {value}" in lead.label:
            found.append(f"{name} ({key}): {' '.join(meaning.split())}.")
    return found


def _compared(study: Study) -> list[PointComparison]:
    return comparison.configurations(study.leading_curve, study.curves) if study.curves else []
