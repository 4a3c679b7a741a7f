"""POP efficiencies of synchronous data-parallel training: factors whose product is the parallel efficiency.

U[r, s] is the useful time of rank r in step s (compute and optimizer), H[r, s] its time on the host (input,
checkpoint, other), T[s] the step. Sums run over steps s, means over ranks r:

    persistent balance  LB_per = mean_r sum_s U / (mean_r sum_s U + P)
    transient balance   LB_tra = (mean_r sum_s U + P) / sum_s max_r U
    host                HostE  = sum_s max_r U / sum_s max_r (U + H)
    transfer            TransE = sum_s max_r (U + H) / sum_s T
    parallel efficiency PE     = mean_r sum_s U / sum_s T = LB_per LB_tra HostE TransE

P is max_r sum_s U - mean_r sum_s U without the bias of the maximum (`analysis.results.rank_steps`), as in
the section of stragglers.

With one synchronization a step the classical serialization factor is 1. Against the base at N0, with
w = samples per rank and step at N / those at N0:

    computation scaling CS = w mean U(N0) / mean U(N)
    efficiency          E(N) = PE(N) / PE(N0) x CS(N)

Source: POP standard metrics (https://pop-coe.eu/node/69), adapted from MPI programs to steps with one
synchronization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from analysis.read.steps import Steps
from analysis.results.curves import Point, of_steps
from analysis.results.rank_steps import straggler_loss
from analysis.stats.estimates import Estimate, Floats, geometric_mean, ratio

FACTORS = ("persistent_balance", "transient_balance", "host", "transfer")
"""Factors of the parallel efficiency, in the order of the formula."""
SCALING = "computation_scaling"
EFFICIENCY = "parallel_efficiency"
_HOST = ("input_s", "checkpoint_s", "other_s")


@dataclass(frozen=True)
class UsefulTime:
    """Times of all ranks of a run over the same records, in seconds."""

    useful_s: Floats
    """Shape (ranks, records)."""
    host_s: Floats
    """Shape (ranks, records)."""
    step_s: Floats
    """Mean over ranks, shape (records,)."""
    steps: int
    """Steps in the records: more than records where records are aggregates."""

    @property
    def useful_per_step_s(self) -> float:
        """Mean over ranks and steps."""
        return float(self.useful_s.mean(axis=0).sum()) / self.steps


def useful_time(steps: Steps) -> UsefulTime | None:
    """The measured steps that all ranks recorded; None without one, without useful time, or where waiting and
    transfer were not measured."""
    cube = steps.cube(("step_s", "compute_s", "optimizer_s", "comm_exposed_s", *_HOST))
    if cube is None or (len(cube.ranks) > 1 and np.isnan(cube.seconds["comm_exposed_s"]).all()):
        return None
    # Ingested runs may lack a phase; its time is then part of another one.
    useful = cube.seconds["compute_s"] + np.nan_to_num(cube.seconds["optimizer_s"])
    host = np.sum([np.nan_to_num(cube.seconds[name]) for name in _HOST], axis=0)
    whole = np.isfinite(useful).all(axis=0)
    if not useful[:, whole].any():
        return None
    step_s = cube.seconds["step_s"][:, whole].mean(axis=0)
    return UsefulTime(useful[:, whole], host[:, whole], step_s, int(cube.counts[whole].sum()))


def factors(run: UsefulTime) -> dict[str, float]:
    """The factors of `FACTORS`, after their product `parallel_efficiency`.

    Of aggregated records the transient balance counts only differences that outlast an aggregate. Of equal
    ranks one has the largest mean by chance, so the slowest rank counts without this bias.
    """
    useful = run.useful_s
    mean_s = float(useful.mean(axis=0).sum())
    chain = [
        mean_s,
        mean_s + straggler_loss(useful).persistent_s * useful.shape[1],
        float(useful.max(axis=0).sum()),
        float((useful + run.host_s).max(axis=0).sum()),
        float(run.step_s.sum()),
    ]
    values = [above / below for above, below in pairwise(chain)]
    return {EFFICIENCY: chain[0] / chain[-1], **dict(zip(FACTORS, values, strict=True))}


def over_repeats(runs: Sequence[UsefulTime]) -> dict[str, Estimate]:
    """`factors` as geometric means over repeats, whose products stay products; no interval exceeds 1, as no
    factor does but by errors of measurement."""
    values = [factors(run) for run in runs]
    means = {name: geometric_mean([each[name] for each in values]) for name in (EFFICIENCY, *FACTORS)}
    return {
        name: mean if mean.high is None else replace(mean, high=max(mean.value, min(mean.high, 1.0)))
        for name, mean in means.items()
    }


def computation_scaling(runs: Sequence[UsefulTime], base: Sequence[UsefulTime], work: float) -> Estimate:
    """Useful time of a step that the base predicts / useful time of the runs.

    Args:
        work: samples per device and step at N / those at N0.
    """
    own_s, base_s = ([each.useful_per_step_s for each in side] for side in (runs, base))
    return ratio(base_s, own_s).scaled(work)


def point_factors(point: Point, base: Point | None) -> dict[str, Estimate]:
    """`over_repeats` of a point, with its computation scaling against another base; empty where a repeat has
    no time of all ranks, and for stages of a pipeline, whose work differs."""
    runs, before = _repeats(point), _repeats(base) if base and base is not point else []
    found = over_repeats(runs) if runs else {}
    if base and runs and before:
        found[SCALING] = computation_scaling(runs, before, point.work_ratio(base))
    return {name: of_steps(point, value) for name, value in found.items()}


def _repeats(point: Point) -> list[UsefulTime]:
    times = [useful_time(run.steps) for run in point.runs]
    known = [time for time in times if time and len(time.useful_s) == point.world_size]
    return known if len(known) == len(times) and point.metrics[0].strategy != "pipeline" else []
