"""Targets of a sweep against its figures: met, missed, or not settled by the runs.

A target is met if the whole interval of the figure lies on its right side, missed if the whole interval lies
on the wrong side. A figure without an interval between repeats settles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from analysis.read.axes import swept_values
from analysis.read.run import Run
from analysis.results.curves import Curve, Point, Unit, measured, of_steps, over_repeats
from analysis.stats.estimates import Basis, Estimate, ratio_of_means
from analysis.units import plural
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.planned import Target, TargetMetric, parse_size

TargetVerdict = Literal["met", "missed", "cannot tell"]

EXIT_CODES: dict[TargetVerdict, int] = {"missed": 1, "cannot tell": 3, "met": 0}
"""Exit code of `report --check`; of several verdicts the first one counts."""

UPPER_BOUNDS = frozenset({"communication_share"})
"""Metrics whose target is the most that is allowed; all others have lower bounds."""

_OF_POINT: dict[TargetMetric, Callable[[Point], Estimate | None]] = {
    "throughput": attrgetter("samples_per_s"),
    "throughput_per_gpu": lambda point: point.samples_per_s.scaled(1 / point.size),
    "efficiency": attrgetter("efficiency"),
}
_MEASURED: dict[TargetMetric, str] = {
    "communication_share": "communication_overhead_percent",
    "gpu_utilization": "gpu.utilization",
    "mfu": "mfu",
    "memory_utilization": "gpu_memory_utilization",
}
"""Figures of `metrics.json`, which each repeat needs."""
_NO_INTERVAL: dict[Basis, str] = {
    "not stationary": "the runs are not stationary",
    "equal repeats": "repeats are equal to the last digit: no interval",
}


@dataclass(frozen=True)
class TargetResult:
    """One target of one curve."""

    curve: str
    unit: Unit
    size: int | None
    """Devices; null where no run has finished on the number of nodes that the target names."""
    at: str
    """The size in words: `16 GPUs`, `2 nodes`."""
    metric: TargetMetric
    target: float
    at_most: bool
    achieved: Estimate | None
    verdict: TargetVerdict
    reason: str
    """Reason for `cannot tell`; else empty."""
    emulated: bool
    runs: tuple[str, ...]
    """Paths of the repeats."""


def required(runs: Sequence[Run], curves: Sequence[Curve]) -> list[TargetResult]:
    """`results`; `ConfigError` without a target."""
    found = results(runs, curves)
    if not found:
        names = ", ".join(sorted({run.sweep for run in runs}))
        again = "add a section `targets` to the sweep file and sweep again"
        if all(run.ingested for run in runs):
            again = "ingest the table under another --sweep, with --targets FILE"
        raise ConfigError(f"no targets in {names}: {again}")
    return found


def exit_code(found: Sequence[TargetResult]) -> int:
    """0: all targets are met; 1: one is missed; 3: the runs cannot tell."""
    verdicts = {result.verdict for result in found}
    return next(code for verdict, code in EXIT_CODES.items() if verdict in verdicts)


def results(runs: Sequence[Run], curves: Sequence[Curve]) -> list[TargetResult]:
    """Results by target and curve. A target of a sweep without curves has one result: `cannot tell`."""
    folders, values = {run.sweep: run.folder.path.parent for run in runs}, swept_values(runs)
    found = []
    for sweep, folder in folders.items():
        known: list[Curve | None] = [curve for curve in curves if curve.sweep == sweep]
        for target, curve in product(read_targets(folder), known or [None]):
            axes = (curve.axes if curve else {}).items()
            planned = (run for run in runs if run.sweep == sweep and values[run.path].items() >= axes)
            largest = max(run.devices or 1 for run in planned)  # where the sweep was to go
            found.append(_result(target, sweep, curve, largest))
    return found


def read_targets(sweep: Path) -> list[Target]:
    """Targets in the `sweep.json` of a sweep; none without the file.

    Raises:
        ConfigError: the file is corrupt.
    """
    try:
        return [Target.model_validate(each) for each in read_json(sweep / "sweep.json").get("targets", [])]
    except FileNotFoundError:
        return []
    except (AttributeError, ValueError) as error:  # JSON of another shape; no JSON, or no valid target
        reason = str(error).splitlines()[0]
        raise ConfigError(f"cannot read the targets in {sweep / 'sweep.json'}: {reason}") from None


def _result(target: Target, sweep: str, curve: Curve | None, largest: int) -> TargetResult:
    unit: Unit = curve.unit if curve else "rank"
    size = parse_size(target.at or largest) or {}
    at = plural(size["size"], unit) if "size" in size else str(target.at)
    point = curve.at(size) if curve else None
    achieved, reason = None, f"no finished run{f' of {at}' if curve else ''}"
    if curve and point:
        at, size = curve.name(point), {"size": point.size}
        achieved, reason = _achieved(target.metric, point)
    verdict: TargetVerdict = "cannot tell"
    if achieved and not reason:
        verdict, reason = _verdict(achieved, target)
    return TargetResult(
        curve.label if curve else sweep, unit, size.get("size"), at, target.metric, target.value,
        target.metric in UPPER_BOUNDS, achieved, verdict, reason, bool(curve and curve.emulated),
        tuple(run.path for run in point.runs) if point else (),
    )  # fmt: skip


def _achieved(metric: TargetMetric, point: Point) -> tuple[Estimate | None, str]:
    """The figure, and the reason for which it settles nothing."""
    if metric in _OF_POINT:
        achieved = _OF_POINT[metric](point)
        if achieved is None:
            return None, "no finished run of the base size"
        base = metric == "efficiency" and point.is_base
        return achieved, "this size is the base, whose efficiency is 1 by definition" if base else ""
    known = measured(point, _MEASURED[metric])
    if None in known:
        return None, f"{metric} was not measured in {plural(known.count(None), 'run')}"
    if metric == "communication_share":  # a ratio of two measured times
        exposed_s = np.multiply(known, point.phases.step_s) / 100
        return of_steps(point, ratio_of_means(exposed_s, point.phases.step_s)), ""
    return over_repeats(point, known), ""


def _verdict(achieved: Estimate, target: Target) -> tuple[TargetVerdict, str]:
    if achieved.basis in _NO_INTERVAL:
        return "cannot tell", _NO_INTERVAL[achieved.basis]
    if achieved.low is None or achieved.high is None or achieved.basis != "repeats":
        return "cannot tell", "one repeat: no interval between repeats"
    if achieved.low <= target.value <= achieved.high and achieved.low < achieved.high:
        return "cannot tell", "the interval contains the target"
    at_most = target.metric in UPPER_BOUNDS
    beyond = achieved.high <= target.value if at_most else achieved.low >= target.value
    return ("met" if beyond else "missed"), ""
