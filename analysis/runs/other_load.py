"""Processors of a run on CPUs that other processes kept busy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from disttrain.config.dotted_keys import get_key
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none

OTHER_LOAD = 0.1
"""Share of the processors that other processes keep busy from which measurements are in doubt."""


def other_load(runs: pd.DataFrame, hardware: pd.DataFrame) -> dict[str, float]:
    """Processors of the job that others kept busy, on its most loaded node, by path of the run.

    It is the mean over the samples in steps of the last attempt, at least 0. The ranks of all nodes are
    subtracted, because nodes of a local or mini-cluster run are one machine; of several machines it is
    therefore too small. Runs with loader processes, which are no ranks, are left out.

    Args:
        runs: included runs in a table of `load`; those with GPUs are left out.
        hardware: `Frames.hardware`.
    """
    on_cpu = runs[(runs["device"] == "cpu").fillna(False)]
    chosen = hardware[(hardware["kind"] == "process") & hardware["step"].notna()]
    chosen = chosen[chosen["run"].isin(on_cpu["path"]) & chosen["host_utilization"].notna()]
    found = {}
    for path, samples in chosen.groupby("run", observed=True):
        last = samples[samples["attempt"] == samples["attempt"].max()]
        own = float(last.groupby("rank")["utilization"].mean().sum())
        busy = float(last.groupby("host", observed=True)["host_utilization"].mean().max())
        if not _loaders(str(path)):
            found[str(path)] = max(0.0, busy - own)
    return found


def busy_shares(runs: pd.DataFrame, hardware: pd.DataFrame) -> pd.Series:
    """`other_load` as a share of the processors of each run; NaN where it is unknown."""
    loads = runs["path"].map(other_load(runs, hardware))
    return loads.astype("float64") / runs["cpu_count"].astype("float64")


def _loaders(path: str) -> int:
    record = read_run_json_or_none(RunDir(Path(path))) or {}
    return int(get_key(record.get("config") or {}, "data.workers") or 0)
