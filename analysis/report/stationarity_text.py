"""Sentences on the warm-up and the stationarity of runs."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd

from analysis.step_statistics import RunStatistics, StepStatistics
from analysis.units import percent, plural

NAMED_RUNS = 3
"""Runs that a warning names."""


def summary(statistics: RunStatistics) -> str:
    """Number of runs by verdict, and the changes that would be detected; empty without step records."""
    if not statistics:
        return ""
    counts = Counter(each.stationarity.verdict for each in statistics.values())
    told = len(statistics) - counts["too few steps"]
    parts = [f"{counts['stationary']} of {plural(told, 'run')} stationary"] if told else []
    if counts["too few steps"]:
        few = plural(counts["too few steps"], "run")
        parts.append(f"{few} with too few independent steps to test")
    jumps = [each.stationarity.jump for each in statistics.values() if each.stationarity.jump]
    drifts = [each.stationarity.drift for each in statistics.values() if each.stationarity.drift]
    power = (
        f" Jumps from {percent(max(jumps))} and drifts from {percent(max(drifts))} on would show."
        if told
        else ""
    )
    return f"Stationarity of the measured steps: {'; '.join(parts)}.{power}"


def warnings(statistics: RunStatistics, included: pd.DataFrame) -> list[str]:
    """A warning on runs whose warm-up is too short and cannot be left out (`analysis.truncation`), and one on
    runs that are not stationary."""
    texts = []
    for verdict, advice in (
        ("warm-up too short", _longer_warm_up(included)),
        ("not stationary", "Look for a device that grew hot or for other load, and run again"),
    ):
        found = [
            f"{row.sweep}/{row.run}: {_finding(statistics[row.path])}"
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


def _finding(statistics: StepStatistics) -> str:
    """The finding on a run, and the reason why its warm-up is not left out."""
    kept = statistics.not_truncated
    short = statistics.stationarity.verdict == "warm-up too short"
    return statistics.stationarity.reason + (f", and stay in the mean ({kept})" if kept and short else "")


def truncations(included: pd.DataFrame) -> list[str]:
    """A note on runs whose means leave out more steps than the recorded warm-up."""
    cut = included[included["truncated_steps"].fillna(0) > 0]
    if cut.empty:
        return []
    named = [f"{row.sweep}/{row.run}: {row.truncated_steps}" for row in cut.head(NAMED_RUNS).itertuples()]
    more = f"; and {len(cut) - NAMED_RUNS} more" if len(cut) > NAMED_RUNS else ""
    most = max(int(json.loads(left_out)[-1][1]) for left_out in cut["left_out"])
    elsewhere = (
        " `status`, `show` and metrics.json count them, so their throughput differs; the table of runs has "
        "both. Hardware samples and profiled collectives include these steps. To leave them out there, set "
        f"telemetry.warmup_steps={most}."
    )
    elsewhere = elsewhere if cut["ingested"].isna().any() else ""
    return [
        f"Warm-up lasted longer than recorded (MSER-5): the means of {len(cut)} of "
        f"{plural(len(included), 'run')} leave out further measured steps, as many on all ranks and in all "
        f"repeats of a configuration ({'; '.join(named)}{more}).{elsewhere}"
    ]


def _longer_warm_up(included: pd.DataFrame) -> str:
    """How to record a longer warm-up."""
    if included["ingested"].isna().any():
        return "Raise telemetry.warmup_steps, and train more steps"
    return "Ingest a table of all ranks and more steps under another --sweep"
