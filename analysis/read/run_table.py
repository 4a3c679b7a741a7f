"""Columns of the table of runs, and where they lie in a `Run`."""

from __future__ import annotations

from typing import Any

from analysis.read.run import Run, value_at
from disttrain.records.steps import PHASES


def _of(place: str, *names: str) -> dict[str, str]:
    return {name: f"{place}{name}" for name in names}


COLUMNS = {
    **_of("", "sweep"),
    "run": "name",
    **_of("", "state", "included", "rejected", "note"),
    **_of("shape.", "nodes", "ranks_per_node", "world_size"),
    **_of("", "devices"),
    "repeat": "record.repeat",
    "model": "metrics.model config.model.kind",
    "dataset": "metrics.dataset.name config.data.kind",
    **{f"dataset_{name}": f"metrics.dataset.{name}" for name in ("version", "sha256")},
    **_of("metrics.dataset.", "unigram_entropy_bits"),
    **_of("metrics.", "parameters", "strategy", "device", "backend", "cpu_count", "torch", "updated"),
    **_of("config.resources.", "threads_per_rank"),  # that compute
    **_of("metrics.", "oversubscribed", "emulated", "local_batch_size", "accumulation", "global_batch_size"),
    **_of("metrics.", "emulation_late_s"),  # mean per step, on the worst rank
    **_of("", "ingested"),  # the table of step times of another program that the run was made of; else null
    **_of("metrics.", "steps", "measured_steps", "measured_s", "seconds_total"),
    "steps_total": "metrics.steps_total config.train.steps",
    "warmup_steps": "metrics.warmup_steps config.telemetry.warmup_steps",
    **_of("metrics.", "sampled_steps"),  # under the profiler
    **_of("metrics.", "left_out"),  # ranges of steps that the figures exclude, as JSON: [[first, last], ...]
    **_of("metrics.", "skipped_steps"),  # without an update, because the gradient norm was not finite
    "last_attempt": "metrics.attempt",  # the attempt that wrote metrics.json
    "samples_per_s": "metrics.samples_per_s reported.samples_per_s",
    **_of("metrics.", "tokens_per_s", "comm_method", "peak_memory_bytes"),
    **_of("", "step_s"),  # mean, over ranks and measured steps
    **{f"step_{name}": f"metrics.step_time.{name}" for name in ("p50_s", "p95_s", "p99_s", "max_s")},
    **_of("metrics.composition.", *PHASES),
    **_of("final.", "train_loss"),  # last point
    **_of("final.", "valid_loss", "bits_per_byte", "accuracy"),  # last validation; a share
    "attempts": "starts",
    "hours": "usage.hours",  # of all attempts, in hours_unit
    "hours_unit": "usage.unit",  # GPU-hours or CPU rank-hours
    **_of("", "hours_bound"),  # most that one start may use by its time limit
    **_of("usage.", "queue_wait_s"),  # summed over all starts
    "usage_source": "usage.source",  # sacct, or timestamps of the attempts
    **_of("preflight.", "preflight"),  # passed, warned, refused, skipped; warned if any start had warnings
    **_of("preflight.", "preflight_warning"),  # first problem of that start
    **_of("preflight.", "preflight_s"),  # duration on node 0, over all attempts
    **_of("record.provenance.", "python", "host", "created"),
    **_of("", "cluster", "code_hash"),
    **_of("first_node.", "processor", "memory_bytes", "kernel"),
    "git_commit": "record.provenance.command.git_commit record.provenance.code.git_commit",
    "git_dirty": "record.provenance.command.git_dirty record.provenance.code.git_dirty",
    **_of("", "command", "own_script"),  # without telemetry: no figures but those of its own metrics.json
    **_of("", "tags", "user_note", "path"),  # tags of the run and of its sweep, separated by spaces
}
"""Columns of the table of runs, and their places in a `Run`, of which the first that is known counts."""


def column_value(run: Run, column: str) -> Any:
    """Value of one of `COLUMNS` of a run; None where unknown."""
    values = (value_at(run, place) for place in COLUMNS[column].split())
    return next((value for value in values if value is not None), None)
