"""Conclusions that the runs of a report do not support, as one sentence for the first screen."""

from __future__ import annotations

from analysis.read.frames import busy_shares, one_machine_of
from analysis.read.samples import OTHER_LOAD
from analysis.report.common import all_points, points_text
from analysis.study import Study
from analysis.units import listed, plural


def limits(study: Study) -> str:
    """The unsupported conclusions, each with its reason; empty without a curve."""
    if not study.curves:
        return ""
    parts = (_hardware, _machines, _repeats, _best_value, _stationary, _load, _beyond)
    found = [part(study) for part in parts]
    text = listed([each for each in found if each])
    return f"{text[0].upper()}{text[1:]}."


def _hardware(study: Study) -> str:
    included = study.included
    if study.emulated:
        return "how fast hardware is (compute or data loading is a wait)"
    if (included["device"] == "cpu").all():
        return "how fast GPUs or their network are (the runs used CPUs)"
    return ""


def _machines(study: Study) -> str:
    several = study.included[study.included["nodes"] > 1]
    found = one_machine_of(several)
    return "scaling over machines (the nodes are parts of one machine)" if found else ""


def _best_value(study: Study) -> str:
    """Swept numbers of which two values do not locate the best one."""
    curves = [curve for curve in study.curves if curve.sweep == study.leading_curve.sweep]
    values = {key: {curve.axes.get(key) for curve in curves} for key in study.leading_curve.axes}
    few = [
        key.rpartition(".")[2]
        for key, found in values.items()
        if len(found) == 2 and all(_is_number(each) for each in found)
    ]
    return f"the best {listed(few)} (two values do not locate it)" if few else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _repeats(study: Study) -> str:
    counts = [len(point.runs) for _, point in all_points(study)]
    alone = counts.count(1)
    if not alone:
        return ""
    which = "of each" if alone == len(counts) else f"at {alone} of {points_text(study, len(counts))}"
    differ = "sizes" if len(study.curves) == 1 else "sizes or configurations"
    return f"that a difference between {differ} is settled (one repeat {which})"


def _stationary(study: Study) -> str:
    moving = sum(point.samples_per_s.basis == "not stationary" for _, point in all_points(study))
    if moving:
        return f"a mean step time at {points_text(study, moving)} (not stationary)"
    few = sum(each.stationarity.verdict == "too few steps" for each in study.statistics.values())
    return f"a steady state in {plural(few, 'run')} (too few steps to test it)" if few else ""


def _load(study: Study) -> str:
    included = study.included
    shares = busy_shares(included)
    loaded = int((shares >= OTHER_LOAD).sum())
    if not loaded:
        return ""
    return f"exact step times of {loaded} of {plural(len(included), 'run')} (other processes were busy)"


def _beyond(study: Study) -> str:
    size, unit = max((curve.points[-1].size, curve.unit) for curve in study.curves)
    return f"any efficiency beyond {plural(size, unit)}"
