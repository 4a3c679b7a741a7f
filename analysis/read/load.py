"""Read run directories: each file once, each run into one `Run`.

A missing, corrupt or unfinished run does not raise: it is not `included`, and `note` has the reason. So has a
run without a readable `run.json`, because its swept values are unknown, and one with impossible figures.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analysis.read.attempts import RunAttempt, host_names, preflight_columns, read_attempts
from analysis.read.plausible import impossible_config, impossible_figure, impossible_steps
from analysis.read.record import read_content, read_record, validated
from analysis.read.run import CurvePoint, Run
from analysis.read.samples import read_samples
from analysis.read.steps import Floats, Steps, choose_measured, read_steps
from disttrain.config.dotted_keys import get_key
from disttrain.errors import ConfigError
from disttrain.records import gpu_hours
from disttrain.records.attempt import Outcome
from disttrain.records.exit_causes import ENDED_BY_REQUEST, unplanned_steps
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Histogram, Metrics, StepTime
from disttrain.records.planned import AnnotationRecord, RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import gpus_per_rank, read_reported
from disttrain.records.steps import PHASES

OWN_SCRIPT = "a script without telemetry"
_NO_STEP = "--warmup leaves none of"
_RUN_FILES = ("run.json", "metrics.json", "attempts")
"""A folder with one of them is a run, so that a damaged run is listed."""
_RATES = (
    "samples_per_s",
    "samples_per_s_per_rank",
    "samples_per_second_per_gpu",
    "throughput_images_per_sec",
    "tokens_per_s",
    "tokens_per_s_per_rank",
    "tokens_per_s_per_gpu",
    "model_flops_per_s_per_rank",
    "mfu",
)
"""Fields of `Metrics` that are proportional to the throughput."""
CURVES = ("loss_history", "grad_norm_history", "eval_history", "communication_computation_history")
"""Lists of points of metrics.json."""
_BINS = 20
_PERCENTILES = {"min_s": 0, "p50_s": 50, "p95_s": 95, "p99_s": 99, "max_s": 100}


class KnownState(NamedTuple):
    """The state of a run where more than its own files is known, such as the answer of a scheduler."""

    state: str
    reason: str
    attempts: int
    usage: gpu_hours.RunGpuHours | None = None
    """None to read it from the files of the run."""


def load_runs(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
    *,
    warmup: int = 0,
    reject_warned: bool = False,
) -> list[Run]:
    """The runs in these sweeps' folders, by sweep and name.

    Args:
        sweeps: folders of sweeps.
        states: by the resolved folder of a run; a run without one has the state of its files.
        only: resolved folders of the runs to read; None for all.
        warmup: leave out the first steps after each start up to this one, where the recorded warm-up is
            shorter.
        reject_warned: leave out runs whose pre-flight had warnings. Runs without a pre-flight stay, as
            nothing is known against their nodes.

    Raises:
        ConfigError: a folder does not exist or holds no run; `warmup` or `reject_warned` leaves no run.
    """
    if warmup < 0:
        raise ConfigError(f"{warmup} is not 0 or greater", at="--warmup")
    folders = dict.fromkeys(Path(sweep).resolve() for sweep in sweeps)
    gc.disable()  # records have no cycles: looking for some takes a tenth of the reading
    try:
        runs = [
            _run(RunDir(run), (states or {}).get(run), warmup, reject_warned=reject_warned)
            for folder in folders
            for run in run_folders(folder)
            if only is None or run in only
        ]
    finally:
        gc.enable()
    if not any(run.included for run in runs):
        short = [run.metrics.steps for run in runs if run.metrics and _NO_STEP in run.note]
        if short:
            raise ConfigError(f"{warmup} leaves no step: the longest run has {max(short)}", at="--warmup")
        rejected = [run for run in runs if run.rejected]
        if rejected:
            first = rejected[0]
            raise ConfigError(
                f"no run is left of {len(rejected)} finished ones, such as "
                f"{first.sweep}/{first.name}: {first.note}",
                at="--reject-warned",
            )
    return sorted(
        runs, key=lambda run: (run.sweep, run.shape is None, run.shape and run.shape.world_size, run.name)
    )


def run_folders(sweep: Path) -> list[Path]:
    """Folders of the runs of a sweep, by name; `ConfigError` without one."""
    if not sweep.is_dir():
        raise ConfigError(f"no sweep at {str(sweep)!r}: no such folder")
    runs = sorted(run for run in sweep.iterdir() if any((run / name).exists() for name in _RUN_FILES))
    if not runs:
        raise ConfigError(f"no runs in {str(sweep)!r}: a run is a folder with run.json or metrics.json")
    return runs


def _run(run: RunDir, known: KnownState | None, warmup: int, *, reject_warned: bool) -> Run:
    unreadable: list[str] = []
    record, run_note = read_record(run.run_json, RunRecord)
    if record is not None and (problem := impossible_config(record.config)):
        record, run_note = None, f"run.json has an impossible value: {problem}"
    config = record.config if record else {}
    metrics, curves, metrics_note, reported = _metrics(run, config)
    attempts = read_attempts(run, unreadable)
    steps = _steps(read_steps(attempts, unreadable), record, metrics, attempts)
    state, included, note = _state(run, metrics, metrics_note)
    preflight = preflight_columns(attempts)
    rejected, reason = False, ""
    if problem := impossible_steps(steps, metrics if included else None):
        reason = f"step records are impossible: {problem}"
        steps = steps.chosen(np.zeros(steps.size, dtype=np.bool_))
    elif included and metrics is not None and warmup:
        steps, remeasured = _remeasured(metrics, steps, warmup)
        if remeasured is None:
            reason = f"{_NO_STEP} its {metrics.measured_steps} measured steps"
        metrics = remeasured or metrics
    included = included and record is not None and not reason
    if included and reject_warned and preflight.get("preflight") == "warned":
        included, rejected = False, True
        reason = f"rejected for its pre-flight: {preflight['preflight_warning'] or 'a warning'}"
    elif known is not None and not included and not run.failed.exists():
        reason = known.reason or reason
    reasons = [reason, note]
    if record is not None and record.ingested is not None and (lacking := record.ingested.incomplete_steps):
        reasons.append(f"lacks rows of some ranks in {lacking} steps, left out")
    if run.run_json.name not in reason:
        reasons.append(run_note)
    tags, user_note = _annotations(run)
    planned = {"config": config, "cluster": record.cluster} if record else None
    return Run(
        folder=run,
        record=record,
        metrics=metrics,
        curves=curves,
        steps=steps,
        samples=read_samples(attempts, steps, unreadable),
        attempts=attempts,
        usage=(known and known.usage) or gpu_hours.read(run, planned, metrics.device if metrics else None),
        reported=reported,
        tags=tags,
        user_note=user_note,
        state=state if known is None else known.state,
        included=included,
        note="; ".join(filter(None, reasons)),
        starts=len(attempts) if known is None else known.attempts,
        problems=unreadable,
        rejected=rejected,
    )


def _metrics(
    run: RunDir, config: dict[str, Any]
) -> tuple[Metrics | None, Mapping[str, list[CurvePoint]], str, dict[str, float] | None]:
    """`metrics.json` without its curves, since validating them takes longer than all the rest; the curves; a
    problem; and the figures that a script of one's own reports instead."""
    content, note = read_content(run.metrics)
    metrics, curves = None, dict[str, list[CurvePoint]]()
    if content is not None:
        try:
            curves = {
                name: msgspec.convert(content.pop(name, None) or [], list[CurvePoint]) for name in CURVES
            }
            metrics, note = validated(run.metrics.name, content | {name: [] for name in CURVES}, Metrics)
        except msgspec.ValidationError as error:
            note = f"metrics.json does not fit its schema: a curve: {error}"
    if metrics is not None and (problem := impossible_figure(metrics, config)):
        metrics, note = None, f"metrics.json has an impossible figure: {problem}"
    if metrics or "command" not in config or "schema_version" in (read_json_or_none(run.metrics) or {}):
        return metrics, curves, note, None
    return None, {}, OWN_SCRIPT, read_reported(run)


def _steps(
    steps: Steps, record: RunRecord | None, metrics: Metrics | None, attempts: Sequence[RunAttempt]
) -> Steps:
    """The steps with their hosts, and the recorded choice of measured ones; without metrics, all after the
    configured warm-up of each attempt."""
    config = record.config if record else {}
    if metrics is None:
        steps = choose_measured(steps, None, (), get_key(config, "telemetry.warmup_steps") or 0)
        per_node = (get_key(config, "resources.gpus_per_node") or 0) // gpus_per_rank(config)
    else:
        steps = choose_measured(steps, metrics.attempt, metrics.left_out, 0)
        per_node = metrics.ranks_per_node
    by_rank = record.ingested.hosts if record and record.ingested else []
    if by_rank:
        host = np.array(by_rank, dtype=object)[steps.rank]
    else:
        host = host_names(attempts if per_node else (), steps.attempt, steps.rank // max(1, per_node))
    return replace(steps, host=host)


def _remeasured(metrics: Metrics, before: Steps, warmup: int) -> tuple[Steps, Metrics | None]:
    """The steps without a longer warm-up, and the metrics over them; None where no recorded step is left.

    Rates are proportional to the throughput of the records. Hardware samples and profiled collectives stay
    those of all recorded measured steps.
    """
    after = choose_measured(before, metrics.attempt, metrics.left_out, warmup)
    measured_steps = int(after.lowest_rank.counts.sum())
    if not measured_steps or not metrics.measured_s:
        return after, None
    if after.measured.sum() == before.measured.sum():
        return after, metrics
    count = "samples" if before.total("samples") else "counts"
    time, work = (after.total(name) / before.total(name) for name in ("step_s", count))
    rates = {name: getattr(metrics, name) for name in _RATES}
    phases = {name: after.mean_s(name) for name in PHASES}
    measured_s = metrics.measured_s * time
    exposed_s = (phases["comm_wait_s"] or 0.0) + (phases["comm_transfer_s"] or 0.0)
    overhead = metrics.communication_overhead_percent
    return after, metrics.model_copy(
        update={name: rate * work / time for name, rate in rates.items() if rate is not None}
        | {
            "warmup_steps": max(warmup, metrics.warmup_steps + metrics.measured_steps - measured_steps),
            "left_out": [*metrics.left_out, (1, int(after.lowest_rank.step[0]) - 1)],
            "measured_steps": measured_steps,
            "measured_s": measured_s,
            "composition": phases,
            "communication_overhead_percent": overhead and 100 * exposed_s * measured_steps / measured_s,
            "step_time": step_time(after.durations_s),
        }
    )


def step_time(durations_s: Floats) -> StepTime | None:
    """Distribution of durations of steps in seconds; None without one."""
    if not durations_s.size:
        return None
    counts, edges = np.histogram(durations_s, bins=_BINS)
    percentiles = np.percentile(durations_s, [*_PERCENTILES.values()]).tolist()
    return StepTime(
        mean_s=float(durations_s.mean()),
        std_s=float(durations_s.std()),
        **dict(zip(_PERCENTILES, percentiles, strict=True)),
        histogram=Histogram(edges_s=edges.tolist(), counts=counts.tolist()),
    )


def _state(run: RunDir, metrics: Metrics | None, problem: str) -> tuple[str, bool, str]:
    """State, whether the run counts in the figures, and the reason if it does not."""
    if run.failed.exists():
        outcome, _ = read_record(run.failed, Outcome)
        cause, message = (outcome.cause, outcome.message) if outcome else ("failed", None)
        return _ended(cause), False, cause.replace("_", " ") + (f": {message}" if message else "")
    if metrics is None:
        if run.done.exists():
            return "done", False, problem if problem == OWN_SCRIPT else f"finished, but {problem}"
        if run.metrics.exists():
            return "started", False, problem
        return ("started", False, "no metrics yet") if run.attempts() else ("planned", False, "not started")
    if metrics.status == "completed":
        if not metrics.samples_per_s or not metrics.measured_s or not metrics.measured_steps:
            return "done", False, f"no measured steps: all {metrics.steps} were warm-up"
        return "done", True, unplanned_steps(metrics.steps, metrics.steps_total) or ""
    progress = f"step {metrics.steps} of {metrics.steps_total}"
    if metrics.status == "running":
        return "running", False, f"not finished: {progress} at the last update, {metrics.updated}"
    cause = metrics.stop_cause or metrics.status
    return _ended(cause), False, f"{cause} at {progress}"


def _ended(cause: str) -> str:
    """State of a run that ended unfinished: a run that the user ended has not failed."""
    return cause if cause in ENDED_BY_REQUEST else "failed"


def _annotations(run: RunDir) -> tuple[str | None, str | None]:
    """Tags of the run and of its sweep, separated by spaces, and the note on the run or else its sweep."""
    own, of_sweep = (
        read_record(folder / "annotation.json", AnnotationRecord)[0] or AnnotationRecord()
        for folder in (run.path, run.path.parent)
    )
    return " ".join(sorted({*own.tags, *of_sweep.tags})) or None, own.note or of_sweep.note
