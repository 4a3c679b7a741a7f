"""Targets of a sweep against its figures: met, missed, or not settled by the runs.

A target is met if the whole interval of the figure lies on its right side, missed if the whole interval lies
on the wrong side. A figure without an interval between repeats settles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.read.axes import swept_values
from analysis.read.run import Run
from analysis.results.curves import Curve, Point, Unit
from analysis.stats.estimates import Estimate, not_stationary, ratio_of_means, share_mean
from analysis.units import number, plural
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.records.planned import SHARES, Target, TargetMetric, parse_size

TargetVerdict = Literal["met", "missed", "cannot tell"]

EXIT_CODES: dict[TargetVerdict, int] = {"met": 0, "missed": 1, "cannot tell": 3}
"""Exit code of `report --check`; a missed target goes before one that the runs cannot settle."""

UPPER_BOUNDS = frozenset({"communication_share"})
"""Metrics whose target is the most that is allowed; all others have lower bounds."""


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
    if "missed" in verdicts:
        return EXIT_CODES["missed"]
    return EXIT_CODES["cannot tell" if "cannot tell" in verdicts or not found else "met"]


def sentence(result: TargetResult) -> str:
    """`missed: efficiency at 8 GPUs is 0.612 [0.580 to 0.646], target at least 0.850`; ASCII,
    for terminals of any encoding."""
    bound = "at most" if result.at_most else "at least"
    unit = "" if result.metric in SHARES else " samples/s"
    text = f"{result.metric} at {result.at} is {_achieved_text(result.achieved)}{unit}"
    reason = f" ({result.reason})" if result.reason else ""
    emulated = ", emulated" if result.emulated else ""
    return f"{result.verdict}: {text}, target {bound} {number(result.target)}{unit}{reason}{emulated}"


def as_json(result: TargetResult) -> dict[str, Any]:
    """The fields of a result; `achieved` with value, low and high."""
    return asdict(result)


def results(runs: Sequence[Run], curves: Sequence[Curve]) -> list[TargetResult]:
    """Results by target and curve. A target of a sweep without curves has one result: `cannot tell`."""
    folders, values = {run.sweep: run.folder.path.parent for run in runs}, swept_values(runs)

    def planned(sweep: str, axes: Mapping[str, Any]) -> list[Run]:
        of_sweep = (run for run in runs if run.sweep == sweep)
        return [run for run in of_sweep if all(values[run.path][key] == axes[key] for key in axes)]

    return [
        _result(target, sweep, curve, planned(sweep, curve.axes if curve else {}))
        for sweep, folder in folders.items()
        for target in read_targets(folder)
        for curve in _or_none([curve for curve in curves if curve.sweep == sweep])
    ]


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


def _or_none(curves: list[Curve]) -> Sequence[Curve | None]:
    return curves or [None]


def _achieved_text(achieved: Estimate | None) -> str:
    if achieved is None or achieved.low is None or achieved.high is None:
        return "unknown" if achieved is None else number(achieved.value)
    return f"{number(achieved.value)} [{number(achieved.low)} to {number(achieved.high)}]"


def _result(target: Target, sweep: str, curve: Curve | None, planned: Sequence[Run]) -> TargetResult:
    unit: Unit = curve.unit if curve else "rank"
    size = parse_size(target.at or _largest(planned)) or {}
    at = plural(size["size"], unit) if "size" in size else str(target.at)
    achieved, reason = None, "no finished run"
    verdict: TargetVerdict = "cannot tell"
    runs: Sequence[Run] = ()
    if curve and (point := curve.at(size)):
        at, size = curve.name(point), {"size": point.size}
        runs = point.runs
        achieved, reason = _achieved(target.metric, point, runs)
        if achieved is not None and not reason:
            verdict, reason = _verdict(achieved, target)
    elif curve:
        reason += f" of {at}"
    return TargetResult(
        curve.label if curve else sweep, unit, size.get("size"), at, target.metric, target.value,
        target.metric in UPPER_BOUNDS, achieved, verdict, reason, bool(curve and curve.emulated),
        tuple(run.path for run in runs),
    )  # fmt: skip


def _largest(planned: Sequence[Run]) -> int:
    """Devices of the largest run, unfinished ones too: targets hold where the sweep was to go."""
    return max((run.devices or 1 for run in planned), default=1)


def _achieved(metric: TargetMetric, point: Point, runs: Sequence[Run]) -> tuple[Estimate | None, str]:
    """The figure, and the reason for which it settles nothing."""
    if metric == "throughput":
        return point.samples_per_s, ""
    if metric == "throughput_per_gpu":
        return point.samples_per_s.scaled(1 / point.size), ""
    if metric == "efficiency":
        if point.efficiency is None:
            return None, "no finished run of the base size"
        of_base = "this size is the base, whose efficiency is 1 by definition"
        return point.efficiency, of_base if point.is_base else ""
    metrics = [run.metrics for run in runs if run.metrics]
    known = [value for each in metrics if (value := _share(metric, each)) is not None]
    if not known or len(known) < len(runs):
        return None, f"{metric} was not measured in {plural(len(runs) - len(known), 'run')}"
    if metric == "communication_share":  # a ratio of two measured times
        durations = [(each.measured_s or 0.0) / each.measured_steps for each in metrics]
        share = ratio_of_means(np.multiply(known, durations), durations)
    else:
        share = share_mean(known)
    return not_stationary(share) if point.samples_per_s.basis == "not stationary" else share, ""


def _share(metric: TargetMetric, metrics: Metrics) -> float | None:
    if metric == "communication_share":
        percent = metrics.communication_overhead_percent
        return None if percent is None else percent / 100
    if metric == "gpu_utilization":
        return metrics.gpu.utilization if metrics.gpu else None
    return metrics.mfu if metric == "mfu" else metrics.gpu_memory_utilization


def _verdict(achieved: Estimate, target: Target) -> tuple[TargetVerdict, str]:
    if achieved.basis == "not stationary":
        return "cannot tell", "the runs are not stationary"
    if achieved.low is None or achieved.high is None or achieved.basis != "repeats":
        return "cannot tell", "one repeat: no interval between repeats"
    if achieved.low <= target.value <= achieved.high and achieved.low < achieved.high:
        return "cannot tell", "the interval contains the target"
    at_most = target.metric in UPPER_BOUNDS
    beyond = achieved.high <= target.value if at_most else achieved.low >= target.value
    return ("met" if beyond else "missed"), ""
