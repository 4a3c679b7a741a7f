"""Sentences on the warm-up and the stationarity of runs."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from analysis.stats.warm_up import MIN_STEPS
from analysis.step_statistics import RunStatistics
from analysis.units import plural

NAMED_RUNS = 3
"""Runs that a warning names."""


def summary(statistics: RunStatistics) -> str:
    """Number of runs by verdict; empty without step records."""
    if not statistics:
        return ""
    counts = Counter(each.stationarity.verdict for each in statistics.values())
    told = len(statistics) - counts["too few steps"]
    parts = [f"{counts['stationary']} of {plural(told, 'run')} stationary"] if told else []
    if counts["too few steps"]:
        few = plural(counts["too few steps"], "run")
        parts.append(f"{few} with fewer than {MIN_STEPS} measured steps, too few to test")
    return f"Warm-up and stationarity of the measured steps, by MSER-5 and a trend test: {'; '.join(parts)}."


def warnings(statistics: RunStatistics, included: pd.DataFrame) -> list[str]:
    """A warning on runs whose recorded warm-up is too short, and one on runs that are not stationary."""
    texts = []
    for verdict, advice in (
        ("warm-up too short", "Raise telemetry.warmup_steps by as many steps, and run again"),
        ("not stationary", "Look for a device that grew hot or for other load, and run again"),
    ):
        found = [
            f"{row.sweep}/{row.run}: {statistics[row.path].stationarity.reason}"
            for row in included.itertuples()
            if row.path in statistics and statistics[row.path].stationarity.verdict == verdict
        ]
        if found:
            more = f"; and {len(found) - NAMED_RUNS} more" if len(found) > NAMED_RUNS else ""
            texts.append(
                f"The means of {len(found)} of {plural(len(included), 'run')} have no interval ({verdict}). "
                f"{'; '.join(found[:NAMED_RUNS])}{more}. {advice}."
            )
    return texts
