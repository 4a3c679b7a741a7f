"""POP efficiencies of synchronous data-parallel training: factors whose product is the parallel efficiency.

U[r, s] is the useful time of rank r in step s (compute and optimizer), H[r, s] its time on the host (input,
checkpoint, other), T[s] the step. Sums run over steps s, means over ranks r:

    persistent balance  LB_per = mean_r sum_s U / (mean_r sum_s U + P)
    transient balance   LB_tra = (mean_r sum_s U + P) / sum_s max_r U
    host                HostE  = sum_s max_r U / sum_s max_r (U + H)
    transfer            TransE = sum_s max_r (U + H) / sum_s T
    parallel efficiency PE     = mean_r sum_s U / sum_s T = LB_per LB_tra HostE TransE

P is max_r sum_s U - mean_r sum_s U without the bias of the maximum (`analysis.stragglers.persistence`), as in
the section of stragglers.

With one synchronization a step the classical serialization factor is 1. Against the base at N0, with
w = samples per rank and step at N / those at N0:

    computation scaling CS = w mean U(N0) / mean U(N)
    efficiency          E(N) = PE(N) / PE(N0) x CS(N)

Source: POP standard metrics (https://pop-coe.eu/node/69), adapted from MPI programs to steps with one
synchronization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pandas as pd

from analysis.losses.log_mean import additive_parts
from analysis.stats.estimates import Estimate, Floats, geometric_mean
from analysis.stragglers.persistence import unbiased_loss

FACTORS = ("persistent_balance", "transient_balance", "host", "transfer")
"""Factors of the parallel efficiency, in the order of the formula."""
SCALING = "computation_scaling"
EFFICIENCY = "parallel_efficiency"


@dataclass(frozen=True)
class RankSteps:
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


def rank_steps(steps: pd.DataFrame) -> RankSteps | None:
    """The measured steps of one run that all its ranks recorded.

    Args:
        steps: rows of one run in `Frames.steps`.

    Returns:
        None without such steps, or where waiting and transfer were not measured.
    """
    rows = steps[steps["measured"]]
    if rows.empty or (rows["rank"].nunique() > 1 and rows["comm_exposed_s"].isna().all()):
        return None
    if rows["compute_s"].isna().all():
        return None
    # Ingested runs may lack a phase; its time is then part of another one.
    useful = rows["compute_s"] + rows["optimizer_s"].fillna(0.0)
    host = rows[["input_s", "checkpoint_s", "other_s"]].sum(axis="columns")
    table = pd.DataFrame(
        {"useful": useful, "host": host, "whole": rows["step_s"], "steps": rows["steps"]}
    ).assign(rank=rows["rank"], step=rows["step"])
    wide = table.pivot_table(index="rank", columns="step")
    complete = wide["useful"].columns[wide["useful"].notna().all(axis=0)]
    if complete.empty:
        return None
    parts = {name: wide[name][complete].to_numpy() for name in ("useful", "host", "whole")}
    count = int(wide["steps"][complete].iloc[0].sum())
    return RankSteps(parts["useful"], parts["host"], parts["whole"].mean(axis=0), count)


def factors(found: RankSteps) -> dict[str, float]:
    """The factors of `FACTORS`; their product is `parallel_efficiency`.

    Of aggregated records the transient balance counts only differences that outlast an aggregate.

    Raises:
        ValueError: no rank has useful time.
    """
    if found.useful_s.sum() <= 0:
        raise ValueError("no rank has useful time")
    pairs = pairwise(_chain(found))
    return {
        name: float(above.sum() / below.sum()) for name, (above, below) in zip(FACTORS, pairs, strict=True)
    }


def _chain(found: RankSteps) -> list[Floats]:
    """Seconds by record, of which each factor is the ratio of one sum to the next one.

    The second one is the slowest rank of the run. Of equal ranks one has the largest mean by chance, so it is
    shifted to the mean without this bias.
    """
    useful = found.useful_s
    slowest, mean = useful[useful.sum(axis=1).argmax()], useful.mean(axis=0)
    return [
        mean,
        slowest - slowest.mean() + mean.mean() + unbiased_loss(useful).persistent_s,
        useful.max(axis=0),
        (useful + found.host_s).max(axis=0),
        found.step_s,
    ]


def over_repeats(runs: Sequence[RankSteps]) -> dict[str, Estimate]:
    """`parallel_efficiency` and the factors, geometric means over repeats."""
    each = [{EFFICIENCY: parallel_efficiency(run), **factors(run)} for run in runs]
    found = {name: geometric_mean([one[name] for one in each]) for name in (EFFICIENCY, *FACTORS)}
    return {name: _at_most_one(estimate) for name, estimate in found.items()}


def _at_most_one(estimate: Estimate) -> Estimate:
    """The estimate with its interval cut at 1, which no factor exceeds but by errors of measurement."""
    if estimate.high is None:
        return estimate
    return replace(estimate, high=max(estimate.value, min(estimate.high, 1.0)))


def parallel_efficiency(found: RankSteps) -> float:
    """Useful time of the mean rank / time of the steps."""
    return float(found.useful_s.sum(axis=1).mean() / found.step_s.sum())


def against_base(runs: Sequence[RankSteps], base: Sequence[RankSteps], work: float) -> dict[str, float]:
    """Ratio of each factor to that of the base, and the computation scaling; geometric means over repeats.

    The product is the efficiency E(N) of these steps.

    Args:
        work: samples per rank and step at N / those at N0.
    """
    own, before = mean_factors(runs), mean_factors(base)
    ratios = {name: own[name] / before[name] for name in FACTORS}
    scaling = work * _mean_useful_s(base) / _mean_useful_s(runs)
    return ratios | {SCALING: scaling}


def mean_factors(runs: Sequence[RankSteps]) -> dict[str, float]:
    """Geometric mean of each factor over repeats: products of factors stay products."""
    found = [factors(run) for run in runs]
    return {name: math.exp(math.fsum(math.log(f[name]) for f in found) / len(found)) for name in FACTORS}


def losses(ratios: Mapping[str, float]) -> dict[str, float]:
    """Share of the actual step lost to each factor of `against_base`; they sum to 1 - E (see `log_mean`)."""
    return additive_parts(math.prod(ratios.values()), ratios)  # ideal time E for an actual time of 1


def _mean_useful_s(runs: Sequence[RankSteps]) -> float:
    return math.exp(math.fsum(math.log(run.useful_per_step_s) for run in runs) / len(runs))
