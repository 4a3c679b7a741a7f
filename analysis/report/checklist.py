"""The twelve rules of Hoefler and Belli for reports on performance, checked on this report.

Source: T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems", SC 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import shapiro

from analysis.report.common import all_points, points_text, sentence
from analysis.report.model import RuleStatus
from analysis.report.section import Section
from analysis.runs.load import run_folders
from analysis.study import Study
from analysis.units import plural

_FACTS = (
    "code_hash", "device", "torch", "python", "command", "model", "dataset_sha256", "host",
    "threads_per_rank",
)  # fmt: skip
"""Columns without which a measurement cannot be repeated."""


_LEAST_REPEATS = 3
_LEAST_RESIDUALS = 8
"""Repeats of one size, and of all such sizes, from which normality is checked."""
_REJECTED = 0.01
"""p-value below which the check fails."""


def rules(study: Study, sections: Sequence[Section]) -> list[RuleStatus]:
    """Status of each rule; `missing` names what a reader would not find."""
    found = []
    for number, (text, check) in enumerate(_RULES, start=1):
        missing = check(study, sections) if study.curves else "no finished run"
        found.append(RuleStatus(rule=number, text=text, met=not missing, missing=missing))
    return found


def _base(study: Study, sections: Sequence[Section]) -> str:
    without = [curve.label for curve in study.curves if curve.base is None]
    return f"no base for {', '.join(without)}" if without else ""


def _subsets(study: Study, sections: Sequence[Section]) -> str:
    left = study.runs[~study.runs["included"]]
    silent = int((left["note"].fillna("") == "").sum())
    known = set(study.runs["path"])
    folders = {Path(path).parent for path in known}
    others = sum(str(run) not in known for folder in folders for run in run_folders(folder))
    outside = f"no reason for {plural(others, 'run')} of the sweep that the report was not given"
    return sentence(
        [f"no reason for {plural(silent, 'run')} left out" if silent else "", outside if others else ""]
    )


def _rates(study: Study, sections: Sequence[Section]) -> str:
    unknown = int(study.included["measured_s"].isna().sum())
    return f"no summed time of {plural(unknown, 'run')}" if unknown else ""


def _ratios(study: Study, sections: Sequence[Section]) -> str:
    return ""  # by construction: `analysis.efficiency`, `analysis.stats.estimates.ratio_of_means`


def _intervals(study: Study, sections: Sequence[Section]) -> str:
    alone = [point for _, point in all_points(study) if len(point.runs) == 1]
    moving = [point for _, point in all_points(study) if point.samples_per_s.basis == "not stationary"]
    return sentence(
        [
            f"{points_text(study, len(alone))} with one repeat and no interval between repeats"
            if alone
            else "",
            f"{points_text(study, len(moving))} not stationary" if moving else "",
        ]
    )


def _normality(study: Study, sections: Sequence[Section]) -> str:
    """Shapiro and Wilk's test (1965) of the logarithms of throughput, pooled over sizes."""
    residuals = [
        value
        for _, point in all_points(study)
        if len(point.samples_per_s_by_run) >= _LEAST_REPEATS
        for value in _residuals(point.samples_per_s_by_run)
    ]
    if len(residuals) < _LEAST_RESIDUALS:
        points = "sizes" if len(study.curves) == 1 else "points"
        return (
            f"too few repeats to check: {_LEAST_RESIDUALS} are needed, from {points} with at least "
            f"{_LEAST_REPEATS} each, and there are {len(residuals)}"
        )
    if np.ptp(residuals) == 0:
        return ""
    p = float(shapiro(residuals).pvalue)
    return (
        "" if p >= _REJECTED else f"logarithms of throughput are not normal (Shapiro and Wilk, p = {p:.2g})"
    )


def _residuals(values: Sequence[float]) -> list[float]:
    """Logarithms less their mean, in standard deviations."""
    logs = np.log(values)
    spread = float(logs.std(ddof=1))
    return [float(each) for each in (logs - logs.mean()) / spread] if spread > 0 else [0.0] * len(values)


def _comparison(study: Study, sections: Sequence[Section]) -> str:
    others = [
        point
        for curve in study.curves
        for point in curve.points
        if curve.base is not None and point is not curve.base
    ]
    unsure = [
        point
        for point in others
        if point.efficiency is None or point.efficiency.low is None or point.efficiency.basis != "repeats"
    ]
    found = points_text(study, len(unsure))
    return f"no interval between repeats of the efficiency at {found}" if unsure else ""


def _percentiles(study: Study, sections: Sequence[Section]) -> str:
    return "" if _has(sections, "step_percentiles") else "no percentiles of step time"


def _setup(study: Study, sections: Sequence[Section]) -> str:
    missing = [name for name in _FACTS if study.included[name].isna().any()]
    return f"not recorded for all runs: {', '.join(missing)}" if missing else ""


def _timing(study: Study, sections: Sequence[Section]) -> str:
    unknown = study.included[(study.included["world_size"] > 1) & study.included["comm_method"].isna()]
    return f"no method of communication time for {plural(len(unknown), 'run')}" if len(unknown) else ""


def _bounds(study: Study, sections: Sequence[Section]) -> str:
    sized = [curve for curve in study.curves if len(curve.points) > 1 and curve.base is not None]
    return "" if sized else "no ideal line: one size alone"


def _detail(study: Study, sections: Sequence[Section]) -> str:
    figures = [figure for section in sections for figure in section.figures]
    return "" if figures else "no figure"


def _has(sections: Sequence[Section], table: str) -> bool:
    return any(each.name == table for section in sections for each in section.tables)


_RULES: tuple[tuple[str, Callable[[Study, Sequence[Section]], str]], ...] = (
    ("The base of each speed-up is named with its absolute performance.", _base),
    ("A subset of runs is used only with a reason for each run left out.", _subsets),
    ("The rate of a run is a ratio of sums of costs; repeats have a geometric mean of rates.", _rates),
    ("Ratios of costs are ratios of means, or geometric means, and no arithmetic means of ratios.", _ratios),
    ("Results that vary have intervals.", _intervals),
    ("Normality is not assumed unchecked: the logarithms of repeats are tested.", _normality),
    ("Comparisons rest on intervals.", _comparison),
    ("Percentiles are given where the tail matters.", _percentiles),
    ("All factors and the setup are recorded.", _setup),
    ("The way of measuring and summarising parallel time is stated.", _timing),
    ("Upper bounds of performance are drawn.", _bounds),
    ("Figures show what is needed to read them; lines join points only to guide the eye.", _detail),
)
