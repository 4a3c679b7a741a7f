"""Read run directories into one tidy table, one row a run.

A missing, corrupt or unfinished run does not raise: its row has `included` false and the reason in `note`. So
has a run without a readable `run.json`, because its swept values are unknown.
Column names end in their unit; swept keys are columns under their dotted names (`parallel.strategy`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.read import attempts
from analysis.read.plausible import impossible_config, impossible_figure
from analysis.read.read_record import read_record
from disttrain.config.config_tree import config_fields
from disttrain.config.dotted_keys import flat_values, get_key
from disttrain.config.ranks import gpus_per_rank
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.errors import ConfigError
from disttrain.records import gpu_hours
from disttrain.records.annotation import AnnotationRecord
from disttrain.records.attempt import Outcome
from disttrain.records.exit_causes import ENDED_BY_REQUEST, unplanned_steps
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.reported import read_reported
from disttrain.records.run_directory import RunDir
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
    "truncated_steps": "Int64",  # further warm-up that MSER-5 found and the report leaves out
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
    **attempts.PREFLIGHT_COLUMNS,
    "torch": "string",
    "python": "string",
    "host": "string",
    "code_hash": "string",
    "git_commit": "string",
    "git_dirty": "boolean",
    "command": "string",
    "created": "string",  # UTC, ISO 8601
    "updated": "string",
    "tags": "string",  # of the run and of its sweep, separated by spaces
    "user_note": "string",  # on the run, else on its sweep
    "path": "string",
}
"""Fixed columns and their types; swept keys follow."""

_SAME_IN_METRICS = set(COLUMNS) & set(Metrics.model_fields) - {"sweep", "dataset", "left_out"}

_RUN_FILES = ("run.json", "metrics.json", "attempts")
"""A folder with one of them is a run, so that a damaged run is listed."""


class KnownState(NamedTuple):
    """The state of a run where more than its own files is known, such as the answer of a scheduler."""

    state: str
    reason: str
    attempts: int


OWN_SCRIPT = "a script of its own "
_SHAPE = ("resources.nodes", "resources.gpus_per_node")
_NOT_IN_KEY = {key for key, field in config_fields() if is_excluded_from_key(field)}


def load(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
) -> pd.DataFrame:
    """Read the runs in these sweeps' folders, ordered by sweep, size and name.

    Args:
        sweeps: folders of sweeps.
        states: by the resolved folder of a run; a run without one has the state of its files.
        only: resolved folders of the runs to read; None for all.

    Raises:
        ConfigError: a folder does not exist or holds no run.
    """
    folders = dict.fromkeys(Path(sweep).resolve() for sweep in sweeps)
    rows = [row for folder in folders for row in _sweep_rows(folder, states or {}, only)]
    axes = sorted({key for row in rows for key in row["axes"]} | _implied_axes(rows))
    for row in rows:
        row.update(_axis_values(axes, row.pop("axes"), row.pop("config")))
    table = pd.DataFrame(rows, columns=[*COLUMNS, *axes]).astype(COLUMNS)
    table[axes] = table[axes].convert_dtypes()
    return table.sort_values(["sweep", "world_size", "run"], ignore_index=True)


def swept_keys(table: pd.DataFrame) -> list[str]:
    """The axis columns of the table: keys that at least one sweep varies."""
    return [column for column in table.columns if column not in COLUMNS]


def read_metrics(path: Path | str) -> tuple[Metrics | None, str]:
    """The metrics of a run, or None and the reason in one line."""
    return read_record(RunDir(Path(path)).metrics, Metrics)


def run_folders(sweep: Path) -> list[Path]:
    """Folders of the runs of a sweep, by name."""
    return sorted(run for run in sweep.iterdir() if any((run / name).exists() for name in _RUN_FILES))


def _sweep_rows(
    sweep: Path, states: Mapping[Path, KnownState], only: Collection[Path] | None
) -> list[dict[str, Any]]:
    if not sweep.is_dir():
        raise ConfigError(f"no sweep at {str(sweep)!r}: no such folder")
    runs = run_folders(sweep)
    if not runs:
        raise ConfigError(f"no runs in {str(sweep)!r}: a run is a folder with run.json or metrics.json")
    return [_row(RunDir(run), states.get(run)) for run in runs if only is None or run in only]


def _row(run: RunDir, known: KnownState | None) -> dict[str, Any]:
    record, run_note = read_record(run.run_json, RunRecord)
    if record is not None and (problem := impossible_config(record.config)):
        record, run_note = None, f"run.json has an impossible value: {problem}"
    metrics, metrics_note = read_record(run.metrics, Metrics, curves=False)
    if metrics is not None and (problem := impossible_figure(metrics)):
        metrics, metrics_note = None, f"metrics.json has an impossible figure: {problem}"
    reported = read_reported(run) if record and "command" in record.config else None
    if reported is not None and metrics is None and not _is_of_telemetry(run):
        metrics_note = _reported_note(reported)
    state, included, note = _state(run, metrics, metrics_note)
    included = included and record is not None  # without its axes, it would be a configuration of its own
    notes = [text for text in (note, run_note if record else "", metrics_note if metrics else "") if text]
    if record and record.ingested and record.ingested.incomplete_steps:
        notes.append(f"lacks rows of some ranks in {record.ingested.incomplete_steps} steps, left out")
    if known is not None:
        state = known.state
        if known.reason and not included and not run.failed.exists():
            notes.insert(0, known.reason)
    if record is None and not any(run.run_json.name in each for each in notes):
        notes.append(run_note)
    config = record.config if record else {}
    row: dict[str, Any] = {
        "sweep": run.sweep,
        "run": run.name,
        "state": state,
        "included": included,
        "note": "; ".join(notes),
        **_annotations(run),
        "path": str(run.path),
        "axes": _axes(record) if record else {},
        "config": config,
    }
    row["samples_per_s"] = (reported or {}).get("samples_per_s")
    row |= _planned(record) | _measured(metrics) | _cost(run, record, metrics)
    row |= attempts.preflight_columns(run)
    if row.get("world_size"):
        row["devices"] = row["world_size"] * (1 if row.get("device") == "cpu" else gpus_per_rank(config))
    return row if known is None else row | {"attempts": known.attempts}


def _state(run: RunDir, metrics: Metrics | None, problem: str) -> tuple[str, bool, str]:
    """State, whether the run counts in the figures, and the reason if it does not."""
    if run.failed.exists():
        outcome, _ = read_record(run.failed, Outcome)
        if outcome is None:
            return "failed", False, "failed"
        state, cause = _ended_state(outcome.cause), outcome.cause.replace("_", " ")
        return state, False, f"{cause}: {outcome.message}" if outcome.message else cause
    if metrics is None:
        if run.done.exists():
            return "done", False, problem if problem.startswith(OWN_SCRIPT) else f"finished, but {problem}"
        if run.metrics.exists():
            return "started", False, problem
        return ("started", False, "no metrics yet") if run.attempts() else ("planned", False, "not started")
    if metrics.status == "completed":
        if not metrics.samples_per_s or not metrics.measured_s or not metrics.measured_steps:
            return "done", False, f"no measured steps: all {metrics.steps} were warm-up"
        return "done", True, unplanned_steps(metrics.steps, metrics.steps_total) or ""
    progress = f"step {metrics.steps} of {metrics.steps_total}"
    if metrics.status in ("failed", "stopped"):
        cause = metrics.stop_cause or metrics.status
        return _ended_state(cause), False, f"{cause} at {progress}"
    return "running", False, f"not finished: {progress} at the last update, {metrics.updated}"


def _is_of_telemetry(run: RunDir) -> bool:
    """Whether the telemetry wrote `metrics.json`, and not a script of its own format."""
    return "schema_version" in (read_json_or_none(run.metrics) or {})


def _reported_note(reported: Mapping[str, float]) -> str:
    figures = ", ".join(f"{name}={value:.6g}" for name, value in reported.items())
    return f"{OWN_SCRIPT}without telemetry, so not measured" + (f"; it reports {figures}" if figures else "")


def _axes(record: RunRecord) -> dict[str, Any]:
    """Swept keys with their values.

    A `command` is `script`, since the column `command` is that of `submit.py`. The axis of a script that has
    the name of another column is `axes.NAME`.
    """
    names = {key: f"axes.{key}" for key in record.axes if key in COLUMNS} | {"command": "script"}
    return {names.get(key, key): value for key, value in record.axes.items()}


def _ended_state(cause: str) -> str:
    """State of a run that ended unfinished: a run that the user ended has not failed."""
    return cause if cause in ENDED_BY_REQUEST else "failed"


def _annotations(run: RunDir) -> dict[str, str | None]:
    own, of_sweep = (
        read_record(folder / "annotation.json", AnnotationRecord)[0] or AnnotationRecord()
        for folder in (run.path, run.path.parent)
    )
    tags = " ".join(sorted({*own.tags, *of_sweep.tags}))
    return {"tags": tags or None, "user_note": own.note or of_sweep.note}


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


def _measured(metrics: Metrics | None) -> dict[str, Any]:
    if metrics is None:
        return {}
    row = {name: getattr(metrics, name) for name in _SAME_IN_METRICS}
    row["last_attempt"] = metrics.attempt
    row["left_out"] = json.dumps(metrics.left_out or [(1, metrics.warmup_steps)])
    row["truncated_steps"] = 0
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


def _cost(run: RunDir, record: RunRecord | None, metrics: Metrics | None) -> dict[str, Any]:
    """Hours and queue time of all attempts, and the hours that the time limit allows for one."""
    planned: dict[str, Any] | None = None
    if record is not None:
        planned = {"config": record.config, "cluster": record.cluster}
    used = gpu_hours.read(run, planned, metrics.device if metrics else None)
    row: dict[str, Any] = {"attempts": len(run.attempts())}
    if used is not None:
        row |= {"attempts": used.attempts, "hours": used.hours, "hours_unit": used.unit}
        row |= {"queue_wait_s": used.queue_wait_s, "usage_source": used.source}
    needed = (*_SHAPE, "job.time_limit_min")
    if planned is not None and all(get_key(planned["config"], key) is not None for key in needed):
        unit = used.unit if used else gpu_hours.unit_of(planned, metrics.device if metrics else None)
        row["hours_bound"] = gpu_hours.bound_hours(planned, unit)
    return row


def _implied_axes(rows: list[dict[str, Any]]) -> set[str]:
    """Keys in which runs without declared axes (started by hand) of one shape differ.

    Repeats differ only in keys excluded from the run key; other differences were varied on purpose and must
    not be averaged over.
    """
    flat = [flat_values(row["config"]) for row in rows if not row["axes"] and row["config"]]
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
