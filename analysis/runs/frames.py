"""Runs, their steps, collectives and hardware samples as typed frames."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.runs import cache
from analysis.runs.collectives import COLLECTIVE_COLUMNS, read_collectives
from analysis.runs.columns import Columns, frame_of_runs
from analysis.runs.hardware import HARDWARE_COLUMNS, read_hardware
from analysis.runs.hosts import RunHosts
from analysis.runs.load import KnownState, load, read_metrics
from analysis.runs.step_columns import SECONDS, in_lineage, in_ranges, lineage_ends, read_step_columns
from disttrain.config.dotted_keys import get_key
from disttrain.errors import in_one_line
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none

STEP_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",
    "host": "category",  # name of the node; empty if unknown
    "step": "int32",  # the first step of an aggregate
    "steps": "int32",  # 1, or the number of steps of an aggregate
    "samples": "int32",
    **dict.fromkeys(SECONDS, "float64"),  # sums for aggregates; NaN where not measured
    "measured": "bool",  # kept, and neither warm-up nor profiled
    "kept": "bool",  # part of the final model: not repeated after a resume
}
"""Columns of `Frames.steps` and their types. The times are those of `records.steps`."""


@dataclass(frozen=True)
class Frames:
    """Run directories as frames."""

    runs: pd.DataFrame
    """One row a run (`load.COLUMNS`, and the swept keys)."""
    steps: pd.DataFrame
    """One row a rank and step record (`STEP_COLUMNS`), in the order of run, attempt, rank and step."""
    collectives: pd.DataFrame
    """One row a rank, profiled step and collective (`COLLECTIVE_COLUMNS`)."""
    hardware: pd.DataFrame
    """One row a sample of a GPU or of a rank's process (`HARDWARE_COLUMNS`)."""
    problems: tuple[str, ...] = ()
    """One line for each record or file that is missing or could not be read."""


class _RunRecords(NamedTuple):
    steps: Columns
    collectives: Columns
    hardware: Columns
    hosts: list[str]
    """Names for the codes in the columns `host`."""
    cached: Path | None
    problems: list[str]


def load_frames(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
) -> Frames:
    """Read the runs in these sweeps' folders; arguments and errors are those of `load`."""
    return read_frames(load(sweeps, states, only), whole_sweeps=only is None)


def read_frames(runs: pd.DataFrame, *, whole_sweeps: bool = False) -> Frames:
    """Frames of the runs of a table of `load`.

    Args:
        runs: a table of `load`.
        whole_sweeps: the table has all runs of its sweeps. Cached tables that none of them uses are deleted.
    """
    paths = [Path(path) for path in runs["path"]]
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
        found = list(threads.map(_read_run, paths))
    if whole_sweeps:
        used = {each.cached for each in found if each.cached is not None}
        for sweep in {path.parent for path in paths}:
            cache.remove_unused(sweep, used)
    names, hosts = runs["path"].tolist(), [each.hosts for each in found]
    return Frames(
        runs,
        frame_of_runs(names, [each.steps for each in found], hosts, STEP_COLUMNS),
        frame_of_runs(names, [each.collectives for each in found], hosts, COLLECTIVE_COLUMNS),
        frame_of_runs(names, [each.hardware for each in found], hosts, HARDWARE_COLUMNS),
        tuple(itertools.chain.from_iterable(each.problems for each in found)),
    )


def _read_run(path: Path) -> _RunRecords:
    run, problems = RunDir(path), list[str]()
    steps, collectives, hardware, cached = Columns(), Columns(), Columns(), None
    metrics, _ = read_metrics(path)
    config = (read_run_json_or_none(run) or {}).get("config", {})
    hosts = RunHosts(run, _ranks_per_node(metrics, config))
    try:
        steps, cached = read_step_columns(run, problems)
        ends = lineage_ends(steps, metrics.attempt if metrics else None)
        steps["kept"] = in_lineage(steps, ends)
        steps["measured"] = steps["kept"] & ~in_ranges(steps["step"], _excluded(metrics, config, steps))
        steps["host"] = hosts.of_ranks(steps["attempt"], steps["rank"])
        hardware = read_hardware(run, steps, hosts, problems)
        collectives = read_collectives(run, metrics.world_size if metrics else None, problems)
        if collectives:
            collectives["host"] = hosts.of_ranks(collectives["attempt"], collectives["rank"])
            collectives["kept"] = in_lineage(collectives, ends)
    except Exception as error:  # a damaged file of one run must not hide the others
        problems.append(f"records of {path}: {in_one_line(error)}")
    return _RunRecords(steps, collectives, hardware, hosts.names, cached, problems)


def _ranks_per_node(metrics: Metrics | None, config: dict[str, object]) -> int | None:
    return metrics.ranks_per_node if metrics else get_key(config, "resources.gpus_per_node")


def _excluded(
    metrics: Metrics | None, config: dict[str, object], steps: Columns
) -> Sequence[tuple[int, int]]:
    """Ranges of warm-up and profiled steps: by `metrics.json`, or else by the configured warm-up."""
    if metrics is not None:
        return metrics.left_out or [(1, metrics.warmup_steps)]
    warmup = get_key(config, "telemetry.warmup_steps") or 0
    _, starts = np.unique(steps["attempt"], return_index=True)
    return [(int(first), int(first) + warmup - 1) for first in steps["step"][starts]]
