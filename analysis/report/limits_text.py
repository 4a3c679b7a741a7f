"""Conclusions that the runs of a report do not support beyond its caveats, for the first screen."""

from __future__ import annotations

from analysis.report.sentences import say
from analysis.study import Study


def limits(study: Study) -> str:
    """Sizes beyond the largest, swept numbers of which two values do not locate the best; empty without a
    curve."""
    if not study.curves:
        return ""
    size, unit = max((curve.points[-1].size, curve.unit) for curve in study.curves)
    curves = [curve for curve in study.curves if curve.sweep == study.leading_curve.sweep]
    values = {key: {curve.axes.get(key) for curve in curves} for key in study.leading_curve.axes}
    few = [
        key.rpartition(".")[2]
        for key, found in values.items()
        if len(found) == 2 and all(type(each) in (int, float) for each in found)
    ]
    return say("limits", size, unit, few)
