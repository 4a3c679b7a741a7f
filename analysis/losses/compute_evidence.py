"""Evidence on compute time from the records of runs: the input of `analysis.losses.compute_loss`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.losses.compute_loss import Cause, ComputeState, explain
from analysis.study import Study


def compute_causes(study: Study, curve: Curve, point: Point) -> tuple[Cause, ...]:
    """Causes of the compute time that a point loses against the base of its curve; empty without a loss."""
    base = curve.base
    if base is None or base is point or not base.composition["compute_s"]:
        return ()
    work = (point.global_batch_size / point.devices) / (base.global_batch_size / base.devices)
    return explain(compute_state(study, curve, point), compute_state(study, curve, base), work)


def compute_state(study: Study, curve: Curve, point: Point) -> ComputeState:
    """Records of the repeats of a point that bear on its compute time."""
    rows = study.included[(study.included["sweep"] == curve.sweep) & study.included["run"].isin(point.runs)]
    steps = study.frames.steps
    steps = steps[steps["measured"] & steps["run"].isin(rows["path"])]
    hosts = [int(found) for run in rows["path"] if (found := _hosts(steps, run))]
    gpus = [metrics.gpu for run in point.runs if (metrics := study.metrics.get((curve.sweep, run)))]
    clocks = [gpu.sm_clock_ratio_mean for gpu in gpus if gpu is not None and gpu.sm_clock_ratio_mean]
    processors = rows["cpu_count"].dropna()
    return ComputeState(
        compute_s=point.composition["compute_s"] or 0.0,
        ranks=point.world_size,
        local_batch_size=point.local_batch_size,
        hosts=max(hosts) if len(hosts) == len(rows) else None,
        processors=None if processors.empty else int(processors.min()),
        on_cpu=bool((rows["device"] == "cpu").all()),
        oversubscribed=bool(rows["oversubscribed"].fillna(False).any()),
        rank_compute_s=rank_compute_s(steps, point.world_size),
        clock=float(np.mean(clocks)) if clocks else None,
    )


def rank_compute_s(steps: pd.DataFrame, ranks: int) -> NDArray[np.float64] | None:
    """Mean compute per step of each rank over measured steps of all repeats, in seconds; shape (ranks,).

    None unless all ranks have records.
    """
    sums = steps.groupby("rank", observed=True)[["compute_s", "steps"]].sum()
    if len(sums) != ranks or not (sums["steps"] > 0).all():
        return None
    return (sums["compute_s"] / sums["steps"]).to_numpy(dtype=np.float64)


def _hosts(steps: pd.DataFrame, run: str) -> int:
    """Number of distinct hosts of a run; 0 if one is unknown."""
    names = set(steps.loc[steps["run"] == run, "host"].unique())
    return 0 if "" in names else len(names)
