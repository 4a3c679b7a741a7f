"""Read run directories: each file once, each run into one `Run`.

A missing, corrupt or unfinished run does not raise: it is not `included`, and `note` has the reason. So has a
run without a readable `run.json`, because its swept values are unknown, and one with impossible figures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analysis.read.attempts import RunAttempt, hosts_of_ranks, read_attempts
from analysis.read.plausible import (
    MOST,
    impossible_config,
    impossible_figure,
    impossible_steps,
)
from analysis.read.record import CURVES, read_content, read_record, validated
from analysis.read.run import CurvePoint, Run
from analysis.read.samples import read_samples
from analysis.read.steps import Floats, Steps, choose_measured, read_steps
from disttrain.config.dotted_keys import get_key
from disttrain.config.ranks import gpus_per_rank
from disttrain.errors import ConfigError
from disttrain.records import gpu_hours
from disttrain.records.annotation import AnnotationRecord
from disttrain.records.attempt import Outcome
from disttrain.records.exit_causes import ENDED_BY_REQUEST, unplanned_steps
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Histogram, Metrics, StepTime
from disttrain.records.planned import RunRecord
from disttrain.records.reported import read_reported
from disttrain.records.run_directory import RunDir
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
_BINS = 20
_PERCENTILES = {"min_s": 0, "p50_s": 50, "p95_s": 95, "p99_s": 99, "max_s": 100}


class KnownState(NamedTuple):
    """The state of a run where more than its own files is known, such as the answer of a scheduler."""

    state: str
    reason: str
    attempts: int


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
    runs = [
        _run(RunDir(run), (states or {}).get(run), warmup)
        for folder in folders
        for run in run_folders(folder)
        if only is None or run in only
    ]
    if warmup and not any(run.included for run in runs):
        short = [run.metrics for run in runs if run.metrics and _NO_STEP in run.note]
        if short:
            most = max(metrics.steps for metrics in short)
            raise ConfigError(f"{warmup} leaves no step: the longest run has {most}", at="--warmup")
    runs.sort(key=lambda run: (run.sweep, run.shape is None, math.prod(run.shape or ()), run.name))
    return _without_warned(runs) if reject_warned else runs


def run_folders(sweep: Path) -> list[Path]:
    """Folders of the runs of a sweep, by name; `ConfigError` without one."""
    if not sweep.is_dir():
        raise ConfigError(f"no sweep at {str(sweep)!r}: no such folder")
    runs = sorted(run for run in sweep.iterdir() if any((run / name).exists() for name in _RUN_FILES))
    if not runs:
        raise ConfigError(f"no runs in {str(sweep)!r}: a run is a folder with run.json or metrics.json")
    return runs


def _run(run: RunDir, known: KnownState | None, warmup: int) -> Run:
    unreadable: list[str] = []
    record, run_note = read_record(run.run_json, RunRecord)
    if record is not None and (problem := impossible_config(record.config)):
        record, run_note = None, f"run.json has an impossible value: {problem}"
    config = record.config if record else {}
    metrics, curves, metrics_note, reported = _metrics(run, config)
    attempts = read_attempts(run, unreadable)
    steps = _steps(read_steps([each.files for each in attempts], unreadable), record, metrics, attempts)
    state, included, note = _state(run, metrics, metrics_note)
    reasons = [note, run_note if record else "", metrics_note if metrics else ""]
    if problem := impossible_steps(steps, metrics if included else None):
        reasons.insert(0, f"step records are impossible: {problem}")
        steps = steps.chosen(np.zeros(steps.size, dtype=np.bool_))
    if record and record.ingested and record.ingested.incomplete_steps:
        reasons.append(f"lacks rows of some ranks in {record.ingested.incomplete_steps} steps, left out")
    if warmup and included and metrics is not None and not problem:
        steps, remeasured = _remeasured(metrics, steps, warmup)
        if remeasured is None:
            reasons.insert(0, f"{_NO_STEP} its {metrics.measured_steps} measured steps")
        included, metrics = remeasured is not None, remeasured or metrics
    included = included and record is not None and not problem
    if known is not None:
        state = known.state
        if known.reason and not included and not run.failed.exists():
            reasons.insert(0, known.reason)
    if record is None and not any(run.run_json.name in each for each in reasons):
        reasons.append(run_note)
    tags, user_note = _annotations(run)
    return Run(
        folder=run,
        record=record,
        metrics=metrics,
        curves=curves,
        steps=steps,
        samples=read_samples(attempts, steps, unreadable),
        attempts=attempts,
        usage=_usage(run, record, metrics),
        reported=reported,
        tags=tags,
        user_note=user_note,
        state=state,
        included=included,
        note="; ".join(filter(None, reasons)),
        starts=len(attempts) if known is None else known.attempts,
        problems=unreadable,
    )


def _metrics(
    run: RunDir, config: dict[str, Any]
) -> tuple[Metrics | None, Mapping[str, list[CurvePoint]], str, dict[str, float] | None]:
    """`metrics.json` with the last point of each curve, since validating all takes longer than all the rest;
    the curves; a caveat or problem; and the figures that a script of one's own reports instead."""
    content, note = read_content(run.metrics)
    metrics, curves = None, dict[str, list[CurvePoint]]()
    if content is not None:
        try:
            curves = {name: msgspec.convert(content.get(name) or [], list[CurvePoint]) for name in CURVES}
        except msgspec.ValidationError as error:
            note = f"metrics.json does not fit its schema: a curve: {error}"
        else:
            last = {name: content[name][-1:] for name in CURVES if content.get(name)}
            if isinstance(ranges := content.get("left_out"), list):
                last["left_out"] = [tuple(each) if isinstance(each, list) else each for each in ranges]
            metrics, note = validated(run.metrics.name, content | last, Metrics)
    if metrics is not None and (problem := impossible_figure(metrics, config)):
        metrics, note = None, f"metrics.json has an impossible figure: {problem}"
    if metrics is not None or "command" not in config:
        return metrics, curves, note, None
    if "schema_version" in (read_json_or_none(run.metrics) or {}):
        return None, curves, note, None
    return None, {}, OWN_SCRIPT, read_reported(run)


def _steps(
    steps: Steps, record: RunRecord | None, metrics: Metrics | None, attempts: Sequence[RunAttempt]
) -> Steps:
    """The steps with their hosts, and the recorded choice of measured ones; without metrics, all after the
    configured warm-up of each attempt."""
    config = record.config if record else {}
    if metrics is None:
        steps = choose_measured(steps, None, None, get_key(config, "telemetry.warmup_steps") or 0)
        per_node = get_key(config, "resources.gpus_per_node")
        per_node = per_node and per_node // gpus_per_rank(config)
    else:
        steps = choose_measured(steps, metrics.attempt, left_out(metrics), 0)
        per_node = metrics.ranks_per_node
    if record is not None and record.ingested is not None and record.ingested.hosts:
        names = np.array(record.ingested.hosts, dtype=object)
        known = steps.rank < names.size
        return replace(steps, host=np.where(known, names[np.where(known, steps.rank, 0)], ""))
    return replace(steps, host=hosts_of_ranks(attempts, steps.attempt, steps.rank, per_node))


def left_out(metrics: Metrics) -> list[tuple[int, int]]:
    """First and last step of each range that the figures exclude."""
    return metrics.left_out or [(1, metrics.warmup_steps)]


def _remeasured(metrics: Metrics, before: Steps, warmup: int) -> tuple[Steps, Metrics | None]:
    """The steps without a longer warm-up, and the metrics over them; None where no recorded step is left.

    Rates are proportional to the throughput of the records. Hardware samples and profiled collectives stay
    those of all recorded measured steps.
    """
    after = choose_measured(before, metrics.attempt, left_out(metrics), warmup)
    measured_steps = int(after.lowest_rank.counts.sum())
    if not measured_steps or not metrics.measured_s:
        return after, None
    if after.measured.sum() == before.measured.sum():
        return after, metrics
    ratio_s = after.total("step_s") / before.total("step_s")
    count = "samples" if before.total("samples") else "counts"
    factor = after.total(count) / before.total(count) / ratio_s
    rates = {name: getattr(metrics, name) for name in _RATES}
    values: dict[str, Any] = {name: value * factor for name, value in rates.items() if value is not None}
    phases = {name: after.mean_s(name) for name in PHASES}
    measured_s = metrics.measured_s * ratio_s
    exposed_s = (phases["comm_wait_s"] or 0.0) + (phases["comm_transfer_s"] or 0.0)
    if metrics.communication_overhead_percent is not None:
        values["communication_overhead_percent"] = 100 * exposed_s * measured_steps / measured_s
    if metrics.communication_computation_ratio is not None and phases["compute_s"]:
        values["communication_computation_ratio"] = exposed_s / phases["compute_s"]
    values |= {
        "warmup_steps": metrics.warmup_steps + metrics.measured_steps - measured_steps,
        "left_out": [*left_out(metrics), (1, int(after.lowest_rank.step[0]) - 1)],
        "measured_steps": measured_steps,
        "measured_s": measured_s,
        "composition": phases,
        "step_time": step_time(after.durations_s),
    }
    return after, metrics.model_copy(update=values)


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
        if outcome is None:
            return "failed", False, "failed"
        state, cause = _ended_state(outcome.cause), outcome.cause.replace("_", " ")
        return state, False, f"{cause}: {outcome.message}" if outcome.message else cause
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
    if metrics.status in ("failed", "stopped"):
        cause = metrics.stop_cause or metrics.status
        return _ended_state(cause), False, f"{cause} at {progress}"
    return "running", False, f"not finished: {progress} at the last update, {metrics.updated}"


def _ended_state(cause: str) -> str:
    """State of a run that ended unfinished: a run that the user ended has not failed."""
    return cause if cause in ENDED_BY_REQUEST else "failed"


def _annotations(run: RunDir) -> tuple[str | None, str | None]:
    """Tags of the run and of its sweep, separated by spaces, and the note on the run or else its sweep."""
    own, of_sweep = (
        read_record(folder / "annotation.json", AnnotationRecord)[0] or AnnotationRecord()
        for folder in (run.path, run.path.parent)
    )
    return " ".join(sorted({*own.tags, *of_sweep.tags})) or None, own.note or of_sweep.note


def _usage(run: RunDir, record: RunRecord | None, metrics: Metrics | None) -> gpu_hours.RunGpuHours | None:
    planned = {"config": record.config, "cluster": record.cluster} if record else None
    usage = gpu_hours.read(run, planned, metrics.device if metrics else None)
    if usage is None or not 0 <= usage.hours <= MOST:
        return None
    try:
        for start in usage.starts:
            gpu_hours.seconds_between(start.started, start.ended)
            gpu_hours.seconds_between(start.submitted or start.started, start.ended)
    except (TypeError, ValueError):  # no times, or with and without a time zone
        return None
    return usage


def _without_warned(runs: Sequence[Run]) -> list[Run]:
    """The runs in which those with warnings in their pre-flight do not count."""
    warnings = {
        run.path: run.preflight.get("preflight_warning") or "a warning"
        for run in runs
        if run.included and run.preflight.get("preflight") == "warned"
    }
    if warnings and not any(run.included and run.path not in warnings for run in runs):
        first = next(run for run in runs if run.path in warnings)
        raise ConfigError(
            f"no run is left: all finished runs ({len(warnings)}) had warnings in their pre-flight, such as "
            f"{first.folder.sweep}/{first.folder.name}: {warnings[first.path]}",
            at="--reject-warned",
        )
    return [
        replace(
            run,
            included=False,
            rejected=True,
            note="; ".join(filter(None, [f"rejected for its pre-flight: {warnings[run.path]}", run.note])),
        )
        if run.path in warnings
        else run
        for run in runs
    ]
