"""Facts on runs that the report lists: quality, cost, overlaps, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from analysis.read.attempts import machine_facts
from analysis.read.run import Run
from analysis.read.run_table import table
from analysis.results.curves import Curve, Unit

_PROVENANCE = {
    "tags": "Tags",
    "user_note": "Note",
    "code_hash": "Code (hash)",
    "git_commit": "Commit",
    "command": "Command",
    "host": "Host",
    "device": "Device",
    "backend": "Backend",
    "torch": "torch",
    "python": "Python",
    "model": "Model",
    "parameters": "Parameters",
    "dataset": "Data",
    "dataset_version": "Data version",
    "dataset_sha256": "Data (SHA-256)",
    "strategy": "Strategy",
    "threads_per_rank": "Compute threads of a rank",
    "warmup_steps": "Warm-up steps",
    "comm_method": "Exposed communication by",
    "preflight": "Pre-flight",
    "created": "Planned",
    "updated": "Measured",
}


class TrainingQuality(NamedTuple):
    """Losses of the runs of one point at their last validation; means over repeats."""

    curve: str
    unit: Unit
    size: int
    shape: str
    repeats: int
    steps: int
    train_loss: float | None
    valid_loss: float | None
    bits_per_byte: float | None
    unigram_entropy_bits: float | None
    """Bits per byte of a model of byte frequencies alone."""
    accuracy: float | None


class RunCost(NamedTuple):
    """GPU-hours and queue time of one run over all attempts, finished or not."""

    sweep: str
    run: str
    state: str
    attempts: int
    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks had no GPU."""
    hours_bound: float | None
    """Most hours that one start may use: its time limit times its devices."""
    queue_wait_s: float | None
    """Summed over all starts; None if no submission is on record."""
    source: str
    """`sacct`: Slurm's accounting; `timestamps`: the attempts' own times."""


def run_costs(runs: Iterable[Run]) -> list[RunCost]:
    """Device-hours of each started run."""
    return [
        RunCost(
            run.sweep,
            run.name,
            run.state,
            run.starts,
            run.usage.hours,
            run.usage.unit,
            run.hours_bound,
            run.usage.queue_wait_s,
            run.usage.source,
        )
        for run in runs
        if run.usage
    ]


def training_quality(curve: Curve) -> list[TrainingQuality]:
    """Losses of the runs of each point at their last validation."""
    found = []
    for point in curve.points:
        by_steps: dict[int, list[Run]] = {}
        for run, metrics in zip(point.runs, point.metrics, strict=True):
            by_steps.setdefault(metrics.steps, []).append(run)
        for steps, runs in sorted(by_steps.items()):  # losses after other numbers of steps do not compare
            means = [_mean(_quality(run).get(name) for run in runs) for name in _QUALITY]
            if any(value is not None for value in means):
                size = (curve.label, curve.unit, point.size, point.shape)
                found.append(TrainingQuality(*size, len(runs), steps, *means))
    return found


_QUALITY = ("train_loss", "valid_loss", "bits_per_byte", "unigram_entropy_bits", "accuracy")


def _quality(run: Run) -> dict[str, float | None]:
    dataset = run.metrics and run.metrics.dataset
    return run.final | {"unigram_entropy_bits": dataset.unigram_entropy_bits if dataset else None}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def run_figures(run: Run) -> dict[str, Any]:
    """Figures of a run that counts, by the names of the columns of `analysis.read.run_table`."""
    metrics = run.metrics
    assert metrics is not None
    times = metrics.step_time
    return {
        "emulated": metrics.emulated,
        "nodes": metrics.nodes,
        "ranks_per_node": metrics.ranks_per_node,
        "samples_per_s": metrics.samples_per_s,
        "step_s": (metrics.measured_s or 0.0) / metrics.measured_steps,
        **{f"step_{name}": getattr(times, name, None) for name in ("p50_s", "p95_s", "p99_s")},
        "measured_steps": metrics.measured_steps,
        "peak_memory_bytes": metrics.peak_memory_bytes,
    }


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Values of the properties of runs, by name."""
    rows, found = table(runs), {}
    for column, name in _PROVENANCE.items():
        values = list(dict.fromkeys(str(value) for value in rows[column].dropna().sort_values()))
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and rows["git_dirty"].fillna(False).any():
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            found[name] = values
    return {**found, **machine_facts(attempt for run in runs for attempt in run.attempts[-1:])}
