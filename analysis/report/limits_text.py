"""Conclusions that the runs of a report do not support, as one sentence for the first screen."""

from __future__ import annotations

from analysis.report.common import all_points, points_text
from analysis.report.notices import OTHER_LOAD
from analysis.runs.other_load import busy_shares, other_load
from analysis.study import Study
from analysis.units import listed, plural


def limits(study: Study) -> str:
    """The unsupported conclusions, each with its reason; empty without a curve."""
    if not study.curves:
        return ""
    found = [_hardware(study), _repeats(study), _stationary(study), _load(study), _beyond(study)]
    text = listed([each for each in found if each])
    return f"{text[0].upper()}{text[1:]}."


def _hardware(study: Study) -> str:
    included = study.included
    if study.emulated:
        return "how fast hardware is (ranks waited in place of compute or data loading)"
    if (included["device"] == "cpu").all():
        return "how fast GPUs or their network are (the runs used CPUs)"
    return ""


def _repeats(study: Study) -> str:
    counts = [len(point.runs) for _, point in all_points(study)]
    alone = counts.count(1)
    if not alone:
        return ""
    which = "of each" if alone == len(counts) else f"at {alone} of {points_text(study, len(counts))}"
    differ = "sizes" if len(study.curves) == 1 else "sizes or configurations"
    return f"that a small difference between {differ} is real (one repeat {which})"


def _stationary(study: Study) -> str:
    moving = sum(point.samples_per_s.basis == "not stationary" for _, point in all_points(study))
    return f"a mean step time at {points_text(study, moving)} (not stationary)" if moving else ""


def _load(study: Study) -> str:
    included = study.included
    shares = busy_shares(included, other_load(included, study.frames.hardware))
    loaded = int((shares >= OTHER_LOAD).sum())
    if not loaded:
        return ""
    return f"exact step times of {loaded} of {plural(len(included), 'run')} (other processes were busy)"


def _beyond(study: Study) -> str:
    size, unit = max((curve.points[-1].size, curve.unit) for curve in study.curves)
    return f"any efficiency beyond {plural(size, unit)}"
