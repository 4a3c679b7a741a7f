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

from dataclasses import replace

import numpy as np

from analysis.read.steps import Steps, filled
from analysis.results.curves import Curve, Point, of_steps
from analysis.results.rank_steps import straggler_loss
from analysis.stats.estimates import Estimate, Floats, geometric_mean, ratio

FACTORS = ("persistent_balance", "transient_balance", "host", "transfer")
"""Factors of the parallel efficiency, in the order of the formula."""
SCALING = "computation_scaling"
EFFICIENCY = "parallel_efficiency"
_HOST = ("input_s", "checkpoint_s", "other_s")


def chain(useful_s: Floats, host_s: Floats, step_s: Floats) -> Floats:
    """The sums over steps of which each factor is the ratio of two neighbours, from mean U to T, shape (5,).

    Of aggregated records the transient balance counts only differences that outlast an aggregate. Of equal
    ranks one has the largest mean by chance, so the slowest rank counts without this bias.

    Args:
        useful_s, host_s: U and H, shape (ranks, records).
        step_s: T, shape (records,).
    """
    mean_s = useful_s.mean(axis=0).sum()
    persistent_s = straggler_loss(useful_s).persistent_s * len(step_s)
    slowest, with_host = (seconds.max(axis=0).sum() for seconds in (useful_s, useful_s + host_s))
    return np.array([mean_s, mean_s + persistent_s, slowest, with_host, step_s.sum()])


def step_chain(steps: Steps, ranks: int) -> Floats | None:
    """`chain` for a step, of the measured steps that all ranks recorded; None without one of all `ranks`,
    without useful time, or where waiting and transfer were not measured."""
    rows = steps.common
    if not rows.size or len(rows) < ranks:
        return None
    seconds = {name: each[rows] for name, each in steps.seconds.items()}
    if ranks > 1 and np.isnan(seconds["comm_exposed_s"]).all():
        return None
    # Ingested runs may lack a phase; its time is then part of another one.
    useful_s = seconds["compute_s"] + filled(seconds["optimizer_s"])
    host_s = filled(np.array([seconds[name] for name in _HOST])).sum(axis=0)
    whole = np.isfinite(useful_s).all(axis=0)
    if not useful_s[:, whole].any():
        return None
    sums = chain(useful_s[:, whole], host_s[:, whole], seconds["step_s"][:, whole].mean(axis=0))
    return sums / steps.counts[rows[0, whole]].sum()


def factors(chains: Floats) -> dict[str, Estimate]:
    """The factors of `FACTORS`, after their product `parallel_efficiency`.

    Geometric means over repeats keep the products. No interval exceeds 1, as no factor does but by errors of
    measurement.

    Args:
        chains: of shape (repeats, 5).
    """
    ratios = [chains[:, 0] / chains[:, -1], *(chains[:, :-1] / chains[:, 1:]).T]
    means = dict(zip((EFFICIENCY, *FACTORS), map(geometric_mean, ratios), strict=True))
    return {
        name: mean if mean.high is None else replace(mean, high=max(mean.value, min(mean.high, 1.0)))
        for name, mean in means.items()
    }


def curve_factors(curve: Curve) -> list[dict[str, Estimate]]:
    """`factors` of each point, with its computation scaling against another base; empty where a repeat has no
    records of all ranks, and for stages of a pipeline, whose work differs."""
    chains = [_chains(point) for point in curve.points]
    base, found = curve.base, []
    before = chains[[point is base for point in curve.points].index(True)] if base else np.empty(0)
    for each, point in zip(chains, curve.points, strict=True):
        values = factors(each) if each.size else {}
        if values and base and point is not base and before.size:
            values[SCALING] = ratio(before[:, 0], each[:, 0]).scaled(point.work_ratio(base))
        found.append({name: of_steps(point, value) for name, value in values.items()})
    return found


def _chains(point: Point) -> Floats:
    chains = [step_chain(run.steps, point.world_size) for run in point.runs]
    known = [each for each in chains if each is not None and point.metrics[0].strategy != "pipeline"]
    return np.array(known if len(known) == len(chains) else [])
