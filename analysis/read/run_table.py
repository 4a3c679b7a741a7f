"""The table of runs: one row a run, with the keys that its sweep varies.

Swept keys are columns under their dotted names (`parallel.strategy`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.read.axes import swept_values
from analysis.read.run import Run
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

_SOURCES = {
    **{name: name for name in ("sweep", "state", "included", "note", "devices", "ingested", "hours_bound")},
    **{name: name for name in ("rejected", "code_hash", "tags", "user_note", "path")},
    **{name: f"shape.{name}" for name in ("nodes", "ranks_per_node", "world_size")},
    **{name: f"record.provenance.{name}" for name in ("python", "host", "created")},
    **{
        name: f"record.provenance.command.{name} record.provenance.code.{name}"
        for name in ("git_commit", "git_dirty")
    },
    **{name: f"metrics.composition.{name}" for name in PHASES},
    **{f"step_{name}": f"metrics.step_time.{name}" for name in ("p50_s", "p95_s", "p99_s", "max_s")},
    **{f"dataset_{name}": f"metrics.dataset.{name}" for name in ("version", "sha256")},
    **{name: f"final.{name}" for name in ("train_loss", "valid_loss", "bits_per_byte", "accuracy")},
    **{name: f"preflight.{name}" for name in ("preflight", "preflight_warning", "preflight_s")},
    "run": "name",
    "repeat": "record.repeat",
    "model": "metrics.model config.model.kind",
    "dataset": "metrics.dataset.name config.data.kind",
    "threads_per_rank": "config.resources.threads_per_rank",
    "steps_total": "metrics.steps_total config.train.steps",
    "warmup_steps": "metrics.warmup_steps config.telemetry.warmup_steps",
    "last_attempt": "metrics.attempt",
    "samples_per_s": "metrics.samples_per_s reported.samples_per_s",
    "unigram_entropy_bits": "metrics.dataset.unigram_entropy_bits",
    "attempts": "starts",
    "hours": "usage.hours",
    "hours_unit": "usage.unit",
    "queue_wait_s": "usage.queue_wait_s",
    "usage_source": "usage.source",
}
"""Places of a column in a `Run`, the first one that is known counts; `metrics.NAME` for others."""


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run (`COLUMNS`, and the keys that a sweep varies), by sweep, size and name."""
    axes = {
        path: {_column(key): value for key, value in of_run.items()}
        for path, of_run in swept_values(runs).items()
    }
    keys = sorted({key for of_run in axes.values() for key in of_run})
    rows = [_row(run) | axes[run.path] for run in runs]
    found = pd.DataFrame(rows, columns=[*COLUMNS, *keys]).astype(COLUMNS)
    found[keys] = found[keys].convert_dtypes()
    return found


def swept_keys(runs: pd.DataFrame) -> list[str]:
    """The axis columns of a table: keys that at least one sweep varies."""
    return [column for column in runs.columns if column not in COLUMNS]


def _column(key: str) -> str:
    """Column of a swept key; `axes.NAME` where another column has that name."""
    return f"axes.{key}" if key in COLUMNS else key


def _row(run: Run) -> dict[str, Any]:
    row = {}
    for name in COLUMNS:
        values = (_at(run, path) for path in _SOURCES.get(name, f"metrics.{name}").split())
        row[name] = next((value for value in values if value is not None), None)
    row |= {
        "own_script": run.reported is not None,
        "left_out": row["left_out"] and json.dumps(row["left_out"]),
    }
    if run.record:
        row["command"] = " ".join(run.record.provenance.argv)
    if run.metrics and run.metrics.measured_s:
        row["step_s"] = run.metrics.measured_s / run.metrics.measured_steps
    return row


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value
