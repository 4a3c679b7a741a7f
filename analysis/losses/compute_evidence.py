"""Evidence on compute time from the records of runs: the input of `analysis.losses.compute_loss`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.losses.compute_loss import Cause, ComputeState, explain
from analysis.stragglers.culprit import Diagnosis, repeated_culprits
from analysis.study import Study
from disttrain.config.dotted_keys import flat_values
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none


def compute_causes(study: Study, curve: Curve, point: Point) -> tuple[Cause, ...]:
    """Causes of the compute time that a point loses against the base of its curve; empty without a loss."""
    base = curve.base
    if base is None:
        return ()
    work = (point.global_batch_size / point.devices) / (base.global_batch_size / base.devices)
    return explain(compute_state(study, curve, point), compute_state(study, curve, base), work)


def compute_state(study: Study, curve: Curve, point: Point) -> ComputeState:
    """Records of the repeats of a point that bear on its compute time.

    Ranks of a pipeline have different work, so their seconds do not compare and are left out.
    """
    rows = study.included[(study.included["sweep"] == curve.sweep) & study.included["run"].isin(point.runs)]
    steps = study.frames.steps
    steps = steps[steps["measured"] & steps["run"].isin(rows["path"])]
    hosts = [found for run in rows["path"] if (found := _hosts(steps[steps["run"] == run], point.world_size))]
    gpus = [metrics.gpu for run in point.runs if (metrics := study.metrics.get((curve.sweep, run)))]
    clocks = [gpu.sm_clock_ratio_mean for gpu in gpus if gpu is not None and gpu.sm_clock_ratio_mean]
    processors = rows["cpu_count"].dropna()
    diagnoses = [study.stragglers[path].diagnosis for path in rows["path"] if path in study.stragglers]
    pipeline = bool((rows["strategy"] == "pipeline").any())
    return ComputeState(
        compute_s=point.composition["compute_s"] or 0.0,
        ranks=point.world_size,
        local_batch_size=point.local_batch_size,
        hosts=max(hosts) if len(hosts) == len(rows) else None,
        processors=None if processors.empty else int(processors.min()),
        threads=max(int(config_of(path).get("resources.threads_per_rank") or 1) for path in rows["path"]),
        on_cpu=bool((rows["device"] == "cpu").all()) and not curve.emulated,
        oversubscribed=bool(rows["oversubscribed"].fillna(False).any()) and not curve.emulated,
        rank_compute_s=None if pipeline else rank_compute_s(steps, point.world_size),
        stragglers=slow_in_compute(diagnoses),
        clock=float(np.mean(clocks)) if clocks else None,
    )


def config_of(path: str) -> dict[str, Any]:
    """Config of a run by dotted key; empty where `run.json` has none."""
    config = (read_run_json_or_none(RunDir(Path(path))) or {}).get("config")
    return flat_values(config) if isinstance(config, dict) else {}


def slow_in_compute(repeats: Sequence[Diagnosis]) -> dict[int, str]:
    """Names by rank, of the ranks whose compute is longer in more than half of the repeats.

    Seconds of compute are means by rank over the repeats, so a slow node that has other ranks in each repeat
    is left out. A rank that is slow on several nodes has its number as name.
    """
    found = [each for each in repeated_culprits(repeats) if each.phase == "compute_s"]
    times = Counter(rank for each in found for rank in each.ranks)
    slow: dict[int, str] = {}
    for rank, count in times.items():
        own = [each for each in found if rank in each.ranks]
        if 2 * count > len(repeats):
            slow[rank] = own[0].name if len({each.host for each in own}) == 1 else f"rank {rank}"
    return slow


def rank_compute_s(steps: pd.DataFrame, ranks: int) -> NDArray[np.float64] | None:
    """Mean compute per step of each rank over measured steps of all repeats, in seconds; shape (ranks,).

    None unless all ranks have records.
    """
    sums = steps.groupby("rank")[["compute_s", "steps"]].sum()
    if len(sums) != ranks or not (sums["steps"] > 0).all():
        return None
    return (sums["compute_s"] / sums["steps"]).to_numpy()


def _hosts(steps: pd.DataFrame, ranks: int) -> int:
    """Hosts of one attempt of a run, the most of all attempts; 0 unless the hosts of all ranks are known."""
    found = steps.assign(host=steps["host"].astype(str)).groupby("attempt")
    known = [len(set(rows["host"])) for _, rows in found if rows["rank"].nunique() == ranks]
    return 0 if (steps["host"] == "").any() else max(known, default=0)
