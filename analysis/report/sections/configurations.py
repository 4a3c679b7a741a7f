"""Configurations of one sweep, compared at equal sizes: the fastest against each of the others."""

from __future__ import annotations

import re

from analysis import comparison
from analysis.comparison import PointComparison
from analysis.report import comparison_parts
from analysis.report.common import sentence, sources
from analysis.report.section import Section
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import bounds, number, times
from disttrain.config.config_tree import config_fields

ORDER = 50

MOST_OTHERS = 8
"""Configurations beside the fastest above which the figure is left out."""


def build(study: Study) -> Section | None:
    """Ratios of throughput; None unless a sweep has configurations that differ in more than the strategy."""
    compared = _compared(study)
    if not compared:
        return None
    lead = study.leading_curve.label
    others = list(dict.fromkeys(each.base_curve.label for each in compared))
    whom, name = (others[0], _size) if len(others) == 1 else ("the others", _point)
    text = f"{lead} against {whom}: {comparison_parts.conclusion(compared, name)}."
    table = comparison_parts.table(
        "configurations",
        f"Throughput of {lead}, which has the highest at its largest size, against {whom} at equal numbers "
        "of nodes and ranks. Ratios above 1: it is faster.",
        compared,
        lambda each: [
            *sources(study, each.curve, each.point),
            *sources(study, each.base_curve, each.base),
        ],
    )
    many = len({id(each.base_curve) for each in compared}) > MOST_OTHERS
    title = "Ratio of throughputs by configuration"
    figure = None if many else comparison_parts.figure("configurations", title, compared)
    return Section(
        "configurations",
        "Configurations",
        text,
        paragraphs=[sentence([*_meanings(study), comparison_parts.verdict_text(compared)])],
        tables=[table],
        figures=[figure] if figure else [],
    )


def _meanings(study: Study) -> list[str]:
    """What the swept options set, by the names that label the configurations."""
    known = {key: field.description or "" for key, field in config_fields()}
    lead = study.leading_curve
    found = []
    for key in lead.axes:
        name, meaning = key.rpartition(".")[2], re.split(r"[.;]", known.get(key, ""))[0].strip()
        if meaning and f"{name} {lead.axes[key]}" in lead.label:
            found.append(f"{name} ({key}): {' '.join(meaning.split())}.")
    return found


def nearest(study: Study) -> str:
    """Ratio of the leading configuration to the next one at its largest size; empty without another."""
    largest = study.leading_curve.points[-1]
    found = [each for each in _compared(study) if each.point is largest]
    if not found:
        return ""
    next_one = min(found, key=lambda each: each.ratio.value)
    at = f"At {next_one.curve.name(largest)}, {next_one.curve.label}"
    other, ratio = next_one.base_curve.label, times(next_one.ratio.value)
    verdict = "equivalent" if next_one.verdict == "equivalent" else ""
    if next_one.verdict == "unsettled":
        verdict = f"unsettled: {next_one.reason}"
    note = "; ".join(text for text in (_bounds(next_one.ratio), verdict) if text)
    return f"{at} has {ratio} the throughput of {other}{f' ({note})' if note else ''}."


def _compared(study: Study) -> list[PointComparison]:
    return comparison.configurations(study.leading_curve, study.curves) if study.curves else []


def _bounds(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return bounds(number(ratio.low), number(ratio.high))


def _size(each: PointComparison) -> str:
    return each.curve.name(each.point)


def _point(each: PointComparison) -> str:
    return f"{each.base_curve.label} on {_size(each)}"
