"""Targets of a sweep against its figures: met, missed, or not settled by the runs.

A target is met if the whole interval of the figure lies on its right side, missed if the whole interval lies
on the wrong side. A figure without an interval between repeats settles nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.efficiency import Curve, Point, Unit, scaling_curves
from analysis.read.frames import load
from analysis.read.run import Run
from analysis.read.run_table import runs_of
from analysis.stats.estimates import Estimate, not_stationary, ratio_of_means, share_mean
from analysis.step_statistics import step_statistics
from analysis.units import number, plural
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.records.planned import Target, TargetMetric

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
    size: int
    """Nodes or ranks, as `unit` says."""
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


def check(
    sweeps: Sequence[Path | str],
    *,
    base: str | None = None,
    only: Collection[Path] | None = None,
    warmup: int = 0,
    reject_warned: bool = False,
) -> list[TargetResult]:
    """Results for all targets of these sweeps; arguments as for `analysis.report.write`.

    Raises:
        ConfigError: no sweep has targets, a `sweep.json` cannot be read, or `reject_warned` leaves no run.
    """
    table = load(sweeps, only=only, warmup=warmup, reject_warned=reject_warned)
    found = results(table, scaling_curves(table, base, step_statistics(table)))
    if not found:
        names = ", ".join(sorted(table["sweep"].unique()))
        again = "add a section `targets` to the sweep file and sweep again"
        if table["ingested"].notna().all():
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
    """`missed: efficiency at 8 nodes is 0.612 [0.580 to 0.646], target at least 0.850`; ASCII,
    for terminals of any encoding."""
    bound = "at most" if result.at_most else "at least"
    unit = " samples/s" if result.metric == "throughput" else ""
    text = f"{result.metric} at {plural(result.size, result.unit)} is {_achieved_text(result)}{unit}"
    reason = f" ({result.reason})" if result.reason else ""
    emulated = ", emulated" if result.emulated else ""
    return f"{result.verdict}: {text}, target {bound} {number(result.target)}{unit}{reason}{emulated}"


def as_json(result: TargetResult) -> dict[str, Any]:
    """The fields of a result; `achieved` with value, low and high."""
    return asdict(result)


def results(table: pd.DataFrame, curves: Sequence[Curve]) -> list[TargetResult]:
    """Results by target and curve. A target of a sweep without curves has one result: `cannot tell`."""
    found: list[TargetResult] = []
    for sweep, folder in _folders(table).items():
        own = [curve for curve in curves if curve.sweep == sweep]
        planned = table[table["sweep"] == sweep]
        for target in read_targets(folder):
            found += [_result(target, curve, planned) for curve in own] or [
                _without_curve(target, sweep, planned)
            ]
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


def _achieved_text(result: TargetResult) -> str:
    achieved = result.achieved
    if achieved is None or achieved.low is None or achieved.high is None:
        return "unknown" if achieved is None else number(achieved.value)
    return f"{number(achieved.value)} [{number(achieved.low)} to {number(achieved.high)}]"


def _folders(table: pd.DataFrame) -> dict[str, Path]:
    """Folder of each sweep, by name."""
    return {row.sweep: Path(row.path).parent for row in table[["sweep", "path"]].itertuples()}


def _result(target: Target, curve: Curve, planned: pd.DataFrame) -> TargetResult:
    size = target.at or _largest_planned(curve, planned)
    point = next((point for point in curve.points if point.size == size), None)
    at_most = target.metric in UPPER_BOUNDS
    achieved, reason = None, f"no finished run of {plural(size, curve.unit)}"
    runs = [] if point is None else runs_of(planned[planned["run"].isin(point.runs)])
    if point is not None:
        achieved, reason = _achieved(target.metric, point, curve, runs)
    verdict: TargetVerdict = "cannot tell"
    if achieved is not None and not reason:
        verdict, reason = _verdict(achieved, target.value, at_most)
    return TargetResult(
        curve.label, curve.unit, size, target.metric, target.value, at_most, achieved, verdict, reason,
        curve.emulated, tuple(run.path for run in runs),
    )  # fmt: skip


def _without_curve(target: Target, sweep: str, planned: pd.DataFrame) -> TargetResult:
    largest = planned["nodes"].max()
    size = target.at or (1 if pd.isna(largest) else int(largest))
    return TargetResult(
        sweep, "node", size, target.metric, target.value, target.metric in UPPER_BOUNDS, None, "cannot tell",
        "no finished run", emulated=False, runs=(),
    )  # fmt: skip


def _largest_planned(curve: Curve, planned: pd.DataFrame) -> int:
    """Largest size of the curve's runs, unfinished ones too: targets hold where the sweep was to go."""
    own = planned
    for key, value in curve.axes.items():
        own = own[own[key].isna() if value is None else (own[key] == value).fillna(value=False)]
    sizes = own["nodes" if curve.unit == "node" else "devices"]
    return int(max(sizes.max(), curve.points[-1].size))


def _achieved(
    metric: TargetMetric, point: Point, curve: Curve, runs: Sequence[Run]
) -> tuple[Estimate | None, str]:
    """The figure, and the reason for which it settles nothing."""
    if metric == "throughput":
        return point.samples_per_s, ""
    if metric == "efficiency":
        if point.efficiency is None:
            return None, "no finished run of the base size"
        if point.size == curve.base_size:
            return point.efficiency, "this size is the base, whose efficiency is 1 by definition"
        return point.efficiency, ""
    values = [_share(metric, run.metrics) for run in runs]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, f"{metric} was not measured in {plural(len(values) - len(known), 'run')}"
    if metric == "communication_share":  # a ratio of two measured times
        durations = [(each.measured_s or 0.0) / each.measured_steps for run in runs if (each := run.metrics)]
        share = ratio_of_means(np.multiply(known, durations), durations)
    else:
        share = share_mean(known)
    return not_stationary(share) if point.samples_per_s.basis == "not stationary" else share, ""


def _share(metric: TargetMetric, metrics: Metrics | None) -> float | None:
    if metrics is None:
        return None
    if metric == "mfu":
        return metrics.mfu
    if metric == "gpu_utilization":
        return metrics.gpu.utilization if metrics.gpu else None
    percent = metrics.communication_overhead_percent
    return None if percent is None else percent / 100


def _verdict(achieved: Estimate, target: float, at_most: bool) -> tuple[TargetVerdict, str]:
    if achieved.basis == "not stationary":
        return "cannot tell", "the runs are not stationary"
    if achieved.low is None or achieved.high is None or achieved.basis != "repeats":
        return "cannot tell", "one repeat: no interval between repeats"
    if achieved.low <= target <= achieved.high and achieved.low < achieved.high:
        return "cannot tell", "the interval contains the target"
    beyond = achieved.high <= target if at_most else achieved.low >= target
    return ("met" if beyond else "missed"), ""
