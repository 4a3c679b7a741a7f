"""The table of runs: one row a run, with the keys that its sweep varies.

It carries its `Run`s: `runs_of` returns them. Swept keys are columns under their dotted names
(`parallel.strategy`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.attempts import preflight_columns
from analysis.read.load import left_out
from analysis.read.run import Run
from disttrain.config.config_tree import config_fields
from disttrain.config.dotted_keys import flat_values, get_key
from disttrain.config.ranks import gpus_per_rank
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.records import gpu_hours
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.steps import PHASES

COLUMNS: dict[str, str] = {
    "sweep": "string",
    "run": "string",
    "state": "string",  # as `status` shows it; from files alone planned, started, running, done, failed, ...
    "included": "boolean",  # finished and measured, so it counts in the figures
    "note": "string",  # reason of exclusion, or a caveat; else empty
    "nodes": "Int64",
    "ranks_per_node": "Int64",
    "world_size": "Int64",
    "devices": "Int64",  # GPUs, or processors in their place: ranks, or the GPUs of a node for `dp`
    "repeat": "Int64",
    "model": "string",
    "parameters": "Int64",
    "dataset": "string",
    "dataset_version": "string",
    "dataset_sha256": "string",
    "strategy": "string",
    "device": "string",
    "backend": "string",
    "cpu_count": "Int64",
    "threads_per_rank": "Int64",  # that compute
    **dict.fromkeys(("oversubscribed", "emulated"), "boolean"),
    "ingested": "string",  # the table of step times of another program that the run was made of; else null
    "emulation_late_s": "Float64",  # mean per step, on the worst rank
    "local_batch_size": "Int64",
    "accumulation": "Int64",
    "global_batch_size": "Int64",
    "steps": "Int64",
    "steps_total": "Int64",
    "warmup_steps": "Int64",
    "sampled_steps": "Int64",  # under the profiler
    "left_out": "string",  # ranges of steps that the figures exclude, as JSON: [[first, last], ...]
    "last_attempt": "Int64",  # the attempt that wrote metrics.json
    "measured_steps": "Int64",
    "skipped_steps": "Int64",  # without an update, because the gradient norm was not finite
    "measured_s": "Float64",
    "seconds_total": "Float64",
    "samples_per_s": "Float64",
    "tokens_per_s": "Float64",
    "step_s": "Float64",  # mean, over ranks and measured steps
    "step_p50_s": "Float64",
    "step_p95_s": "Float64",
    "step_p99_s": "Float64",
    "step_max_s": "Float64",
    **dict.fromkeys(PHASES, "Float64"),
    "comm_method": "string",
    "peak_memory_bytes": "Int64",
    "train_loss": "Float64",  # last point
    "valid_loss": "Float64",
    "bits_per_byte": "Float64",  # last validation
    "accuracy": "Float64",  # last validation, a share
    "unigram_entropy_bits": "Float64",
    "attempts": "Int64",
    "hours": "Float64",  # of all attempts, in hours_unit
    "hours_unit": "string",  # GPU-hours or CPU rank-hours
    "hours_bound": "Float64",  # most that one start may use by its time limit
    "queue_wait_s": "Float64",  # summed over all starts
    "usage_source": "string",  # sacct, or timestamps of the attempts
    "preflight": "string",  # passed, warned, refused, skipped; warned if any start had warnings
    "preflight_warning": "string",  # first problem of that start
    "preflight_s": "Float64",  # duration on node 0, over all attempts
    "rejected": "boolean",  # finished and measured, but left out for the warnings of its pre-flight
    "torch": "string",
    "python": "string",
    "host": "string",
    "code_hash": "string",
    "git_commit": "string",
    "git_dirty": "boolean",
    "command": "string",
    "own_script": "boolean",  # without telemetry: no figures but those of its own metrics.json
    "created": "string",  # UTC, ISO 8601
    "updated": "string",
    "tags": "string",  # of the run and of its sweep, separated by spaces
    "user_note": "string",  # on the run, else on its sweep
    "path": "string",
}
"""Fixed columns of the table of runs and their types; swept keys follow."""

_SAME_IN_METRICS = set(COLUMNS) & set(Metrics.model_fields) - {"sweep", "dataset", "left_out"}
_SHAPE = ("resources.nodes", "resources.gpus_per_node")
_NOT_IN_KEY = {key for key, field in config_fields() if is_excluded_from_key(field)}
_RUNS = "runs"


class _Runs(dict[str, Run]):
    """Runs by path, as an attribute of a table. pandas copies attributes with each selection."""

    def __deepcopy__(self, memo: object) -> _Runs:
        return self


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run (`COLUMNS`, and the keys that a sweep varies), by sweep, size and name."""
    axes = {run.path: _axes(run.record) for run in runs}
    keys = sorted({key for each in axes.values() for key in each} | _implied_axes(runs))
    rows = [_row(run) | _axis_values(keys, axes[run.path], run.config) for run in runs]
    rows.sort(key=lambda row: (row["sweep"], row.get("world_size") or np.inf, row["run"]))
    found = pd.DataFrame(rows, columns=[*COLUMNS, *keys]).astype(COLUMNS)
    found[keys] = found[keys].convert_dtypes()
    found.attrs[_RUNS] = _Runs((run.path, run) for run in runs)
    return found


def runs_of(runs: pd.DataFrame) -> list[Run]:
    """The runs of the rows of a table."""
    return [runs.attrs[_RUNS][path] for path in runs["path"]]


def swept_keys(runs: pd.DataFrame) -> list[str]:
    """The axis columns of a table: keys that at least one sweep varies."""
    return [column for column in runs.columns if column not in COLUMNS]


def _row(run: Run) -> dict[str, Any]:
    row: dict[str, Any] = {
        "sweep": run.folder.sweep,
        "run": run.folder.name,
        "samples_per_s": (run.reported or {}).get("samples_per_s"),
        "own_script": run.reported is not None,
        **{
            name: getattr(run, name)
            for name in ("state", "included", "note", "tags", "user_note", "path", "rejected")
        },
        **_planned(run.record),
        **_measured(run),
        **_cost(run),
        **preflight_columns(run.attempts),
    }
    if row.get("world_size"):
        row["devices"] = row["world_size"] * (1 if row.get("device") == "cpu" else gpus_per_rank(run.config))
    return row


def _axes(record: RunRecord | None) -> dict[str, Any]:
    """Swept keys with their values.

    A `command` is `script`, since the column `command` is that of `submit.py`. The axis of a script that has
    the name of another column is `axes.NAME`.
    """
    if record is None:
        return {}
    names = {key: f"axes.{key}" for key in record.axes if key in COLUMNS} | {"command": "script"}
    return {names.get(key, key): value for key, value in record.axes.items()}


def _planned(record: RunRecord | None) -> dict[str, Any]:
    """Columns from `run.json`; those from metrics override them."""
    if record is None:
        return {}
    source, config = record.provenance, record.config
    code = source.command or source.code
    nodes, gpus = get_key(config, "resources.nodes"), get_key(config, "resources.gpus_per_node")
    ranks = gpus and gpus // gpus_per_rank(config)
    return {
        "repeat": record.repeat,
        "nodes": nodes,
        "ranks_per_node": ranks,
        "world_size": nodes * ranks if nodes and ranks else None,
        "model": get_key(config, "model.kind"),
        "dataset": get_key(config, "data.kind"),
        "threads_per_rank": get_key(config, "resources.threads_per_rank"),
        "steps_total": get_key(config, "train.steps"),
        "warmup_steps": get_key(config, "telemetry.warmup_steps"),
        "python": source.python,
        "host": source.host,
        "code_hash": code.hash,
        "git_commit": code.git_commit,
        "git_dirty": code.git_dirty,
        "command": " ".join(source.argv),
        "created": source.created,
        "ingested": record.ingested.source if record.ingested else None,
    }


def _measured(run: Run) -> dict[str, Any]:
    """Columns from `metrics.json`."""
    metrics = run.metrics
    if metrics is None:
        return {}
    row = {name: getattr(metrics, name) for name in _SAME_IN_METRICS}
    row["last_attempt"] = metrics.attempt
    row["left_out"] = json.dumps(left_out(metrics))
    if metrics.dataset is not None:
        row |= {
            "dataset": metrics.dataset.name,
            "dataset_version": metrics.dataset.version,
            "dataset_sha256": metrics.dataset.sha256,
            "unigram_entropy_bits": metrics.dataset.unigram_entropy_bits,
        }
    row |= {name: metrics.composition.get(name) for name in PHASES}
    if metrics.measured_s and metrics.measured_steps:
        row["step_s"] = metrics.measured_s / metrics.measured_steps
    if metrics.step_time:
        row |= {
            f"step_{name}": getattr(metrics.step_time, name) for name in ("p50_s", "p95_s", "p99_s", "max_s")
        }
    if metrics.loss_history:
        row["train_loss"] = metrics.loss_history[-1].loss
    if metrics.eval_history:
        last = metrics.eval_history[-1]
        row["valid_loss"] = last.loss
        row |= {name: last.metrics.get(name) for name in ("bits_per_byte", "accuracy")}
    return row


def _cost(run: Run) -> dict[str, Any]:
    """Hours and queue time of all attempts, and the hours that the time limit allows for one."""
    usage, record, device = run.usage, run.record, run.metrics.device if run.metrics else None
    row: dict[str, Any] = {"attempts": run.starts}
    if usage is not None:
        row |= {"hours": usage.hours, "hours_unit": usage.unit}
        row |= {"queue_wait_s": usage.queue_wait_s, "usage_source": usage.source}
    needed = (*_SHAPE, "job.time_limit_min")
    if record is not None and all(get_key(record.config, key) is not None for key in needed):
        planned = {"config": record.config, "cluster": record.cluster}
        unit = usage.unit if usage else gpu_hours.unit_of(planned, device)
        row["hours_bound"] = gpu_hours.bound_hours(planned, unit)
    return row


def _implied_axes(runs: Sequence[Run]) -> set[str]:
    """Keys in which runs without declared axes (started by hand) of one shape differ.

    Repeats differ only in keys excluded from the run key; other differences were varied on purpose and must
    not be averaged over.
    """
    flat = [flat_values(run.config) for run in runs if run.record and not run.record.axes]
    implied = set()
    for one, other in itertools.combinations(flat, 2):
        if all(one.get(key) == other.get(key) for key in _SHAPE):
            implied |= {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    if "train.local_batch_size" in implied:
        implied.discard("train.global_batch_size")  # follows from it and the shape
    return implied - _NOT_IN_KEY


def _axis_values(axes: list[str], own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The run's value of each swept key, from its config if its own sweep did not vary the key."""
    values = {key: own.get(key, get_key(config, key)) for key in axes}
    return {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in values.items()}
