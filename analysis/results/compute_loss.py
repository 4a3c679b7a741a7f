"""Causes of lost compute time: from the records of runs to a cause, or to `unknown`.

Compute that takes longer than the base predicts has several causes that records can show. Two have a size:
slow ranks (the named stragglers against the median of the other ranks; without a name, mean against median
over ranks) and lower clocks. They are factors of the compute time,

    ideal / actual = slow ranks x clocks x rest

and the part of a factor f is L ln(1 / f) with the logarithmic mean L = (actual - ideal) / ln(actual / ideal),
so that the parts sum exactly to the loss (Ang, Energy Policy 33, 2005). The rest has candidates without a
size: processors shared by more ranks, and kernels of a smaller local batch. Other work on the nodes
stands in their place; without a candidate the cause of the rest is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from analysis.read.steps import Steps
from analysis.results.culprits import Diagnosis, recurring
from analysis.results.curves import Curve, Point
from analysis.results.phases import Floats
from analysis.study import Study
from disttrain.config.dotted_keys import get_key

CauseName = Literal[
    "slow_ranks", "lower_clocks", "other_work", "shared_processors", "smaller_batch", "unknown"
]
DISTURBANCES = {
    "overlaps": "other runs were at work on their nodes",
    "other load": "other processes used their processors",
}
"""Work of others, by kind of caveat."""

SMALL = 0.1
"""Sized causes below this share of the loss are counted in the rest."""


@dataclass(frozen=True)
class ComputeState:
    """Records of one size that bear on its compute time; None where a value is not known."""

    compute_s: float
    """Compute of a step in seconds, mean over ranks."""
    ranks: int
    local_batch_size: int
    """Samples of one pass over the model."""
    hosts: int | None = None
    processors: int | None = None
    """Processors of one host that the ranks may use."""
    threads: int = 1
    """Threads of one rank."""
    on_cpu: bool = False
    """Whether the processors do the compute: neither a GPU nor an emulation's wait."""
    oversubscribed: bool = False
    """More busy threads than processors on a host, or several ranks on one GPU."""
    rank_compute_s: Floats | None = None
    """Mean compute per step of each rank in seconds, shape (ranks,)."""
    stragglers: Mapping[int, str] = field(default_factory=dict)
    """Ranks that the search for stragglers found, each with the name of its rank or node."""
    disturbed: str = ""
    """What else was at work on the nodes: a value of `DISTURBANCES`."""
    clock: float | None = None
    """SM clock as a fraction of its maximum, mean over GPUs."""

    @property
    def processors_per_rank(self) -> float | None:
        if self.processors is None or self.hosts is None:
            return None
        return self.processors * self.hosts / self.ranks


@dataclass(frozen=True)
class Cause:
    """One part of the compute loss."""

    evidence: Mapping[CauseName, Mapping[str, Any]]
    """Numbers of the sentence by cause; more than one: candidates that the records cannot separate."""
    seconds: float
    """Seconds per step, mean over ranks; negative for a gain."""


def compute_causes(study: Study, curve: Curve, point: Point) -> list[Cause]:
    """Causes of the compute time that a point loses against the base of its curve; empty without a loss."""
    base = curve.base
    if base is None:
        return []
    state, before = (compute_state(study, curve, each) for each in (point, base))
    return explain(state, before, point.work_ratio(base))


def explain(point: ComputeState, base: ComputeState, work: float) -> list[Cause]:
    """Causes of compute beyond `work` x that of the base.

    Args:
        work: samples per device and step at the point / those at the base.

    Returns:
        Causes whose seconds sum exactly to the loss, named stragglers first; empty without a loss.
    """
    ideal_s = work * base.compute_s
    loss_s = point.compute_s - ideal_s
    if loss_s <= 0 or ideal_s <= 0:
        return []
    clocks = point.clock / base.clock if point.clock and base.clock else 1.0
    ranks = _balance(point) / _balance(base)
    mean_s = loss_s / math.log1p(loss_s / ideal_s)
    ranks_s, clocks_s = -mean_s * math.log(ranks), -mean_s * math.log(clocks)
    causes = []
    if ranks_s >= SMALL * loss_s:
        causes.append(Cause({"slow_ranks": _slowest(point)}, ranks_s))
    if clocks_s >= SMALL * loss_s:
        causes.append(Cause({"lower_clocks": {"clock": point.clock, "before": base.clock}}, clocks_s))
    rest_s = loss_s - sum(cause.seconds for cause in causes)
    if abs(rest_s) > 1e-9 * loss_s:
        candidates = _candidates(point, base) if rest_s > 0 else {}
        causes.append(Cause(candidates or {"unknown": {}}, rest_s))
    return sorted(
        causes, key=lambda cause: (not (point.stragglers and "slow_ranks" in cause.evidence), -cause.seconds)
    )


def _candidates(point: ComputeState, base: ComputeState) -> dict[CauseName, Mapping[str, Any]]:
    """Causes of the rest, which have no size of their own."""
    if point.disturbed:
        return {"other_work": {"text": point.disturbed}}
    candidates: dict[CauseName, Mapping[str, Any]] = {}
    own, before = point.processors_per_rank, base.processors_per_rank
    if own is not None and before is not None:
        fewer = own < before and own < point.threads
        if fewer and (point.on_cpu or point.oversubscribed):
            candidates["shared_processors"] = {"own": own, "before": before}
    elif point.oversubscribed and (not base.oversubscribed or point.ranks > base.ranks):
        candidates["shared_processors"] = {"own": None}
    if point.local_batch_size < base.local_batch_size:
        samples = {"own": point.local_batch_size, "before": base.local_batch_size}
        candidates["smaller_batch"] = samples
    return candidates


def _balance(state: ComputeState) -> float:
    """Usual / mean compute of ranks: below 1 if some ranks are slower than most."""
    ranks = state.rank_compute_s
    if ranks is None or not np.all(ranks > 0):
        return 1.0
    if state.stragglers:
        usual = np.where(np.isin(np.arange(len(ranks)), list(state.stragglers)), _usual_s(state), ranks)
        return float(np.mean(np.minimum(usual, ranks)) / np.mean(ranks))
    if len(ranks) < 3:  # of two ranks neither is the normal one
        return 1.0
    return float(np.median(ranks) / np.mean(ranks))


def _usual_s(state: ComputeState) -> float:
    """Median compute of the ranks that are no stragglers, in seconds."""
    assert state.rank_compute_s is not None
    others = np.delete(state.rank_compute_s, list(state.stragglers))
    return float(np.median(others if state.stragglers else state.rank_compute_s))


def _slowest(state: ComputeState) -> dict[str, Any]:
    """Name of the slowest straggler, or rank without any, its compute beyond the usual, and other names."""
    assert state.rank_compute_s is not None
    slow = max(state.stragglers or range(state.ranks), key=lambda rank: float(state.rank_compute_s[rank]))
    name = state.stragglers.get(slow, f"rank {slow}")
    return {
        "name": name,
        "beyond": float(state.rank_compute_s[slow]) / _usual_s(state) - 1,
        "others": [other for other in dict.fromkeys(state.stragglers.values()) if other != name],
    }


def compute_state(study: Study, curve: Curve, point: Point) -> ComputeState:
    """Records of the repeats of a point that bear on its compute time.

    Ranks of a pipeline have different work, so their seconds do not compare and are left out.
    """
    steps, metrics = [run.steps for run in point.runs], point.metrics
    hosts = [_hosts(each, point.world_size) for each in steps]
    clocks = [each.gpu.sm_clock_ratio_mean for each in metrics if each.gpu and each.gpu.sm_clock_ratio_mean]
    processors = [each.cpu_count for each in metrics if each.cpu_count is not None]
    threads = [get_key(run.config, "resources.threads_per_rank") or 1 for run in point.runs]
    pipeline = any(each.strategy == "pipeline" for each in metrics)
    kinds = doubts(study, curve, point)
    return ComputeState(
        compute_s=point.composition["compute_s"] or 0.0,
        ranks=point.world_size,
        local_batch_size=point.local_batch_size,
        hosts=max(hosts) if all(hosts) else None,
        processors=min(processors, default=None),
        threads=max(threads),
        on_cpu=all(each.device == "cpu" for each in metrics) and not curve.emulated,
        oversubscribed=any(each.oversubscribed for each in metrics) and not curve.emulated,
        rank_compute_s=None if pipeline else rank_compute_s(steps, point.world_size),
        stragglers=slow_in_compute(study.diagnoses(point)),
        disturbed=next((text for kind, text in DISTURBANCES.items() if kind in kinds), ""),
        clock=float(np.mean(clocks)) if clocks else None,
    )


def doubts(study: Study, curve: Curve, point: Point) -> set[str]:
    """Kinds of the caveats that doubt times of the runs of a point or its base: they shared a machine."""
    points = [point, *([curve.base] if curve.base else [])]
    paths = frozenset().union(*(each.paths for each in points))
    known = [each for each in study.caveats if "transfer advice" in each.forbids]
    return {each.kind for each in known if not paths.isdisjoint(each.runs)}


def slow_in_compute(repeats: Sequence[Diagnosis]) -> dict[int, str]:
    """Names by rank, of the ranks whose compute is longer in more than half of the repeats.

    Seconds of compute are means by rank over the repeats, so a slow node that has other ranks in each repeat
    is left out. A rank that is slow on several nodes has its number as name.
    """
    culprits = [each for part in recurring(repeats) for each in part.culprits if each.phase == "compute_s"]
    times = Counter(rank for each in culprits for rank in each.ranks)
    slow: dict[int, str] = {}
    for rank in (rank for rank, count in times.items() if 2 * count > len(repeats)):
        names = {each.host: each.name for each in reversed(culprits) if rank in each.ranks}
        slow[rank] = f"rank {rank}" if len(names) > 1 else next(iter(names.values()))
    return slow


def rank_compute_s(repeats: Sequence[Steps], ranks: int) -> Floats | None:
    """Mean compute per step of each rank over measured steps of all repeats, in seconds; shape (ranks,).

    None unless all ranks have records.
    """
    measured = [each.chosen(each.measured) for each in repeats]
    rank = np.concatenate([each.rank for each in measured])
    seconds = np.nan_to_num(np.concatenate([each.seconds["compute_s"] for each in measured]))
    counts = np.bincount(rank, np.concatenate([each.counts for each in measured]), ranks)
    if counts.size != ranks or not (counts > 0).all():
        return None
    means: Floats = np.bincount(rank, seconds, ranks) / counts
    return means


def _hosts(steps: Steps, ranks: int) -> int:
    """Hosts of one attempt of a run, the most of all attempts; 0 unless the hosts of all ranks are known."""
    attempts = [steps.measured & (steps.attempt == number) for number in np.unique(steps.attempt)]
    known = [set(steps.host[rows]) for rows in attempts if np.unique(steps.rank[rows]).size == ranks]
    return 0 if (steps.host[steps.measured] == "").any() else max(map(len, known), default=0)
