"""Samples of the GPUs and processes of one run, and what they show: utilization, load of other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.read.attempts import RunAttempt, host_names, read_records
from analysis.read.lines import Int32
from analysis.read.steps import Floats, Steps, filled
from disttrain.records.base import Record
from disttrain.records.hardware import GpuSample, HostSample

Kind = Literal["gpu", "process"]
Device = Literal["gpu", "processors"]
_RECORDS: dict[Kind, tuple[str, type[Record]]] = {
    "gpu": ("gpu-node*.jsonl", GpuSample),
    "process": ("host-node*.jsonl", HostSample),
}
VALUES: dict[Kind, list[str]] = {
    kind: [
        name
        for name, each in record.model_fields.items()
        if each.annotation in (float, float | None, int | None)
    ]
    for kind, (_, record) in _RECORDS.items()
}
"""Measured fields of the samples by kind (`disttrain.records.hardware`), in their recorded units."""

OTHER_LOAD = 0.1
"""Share of the processors that other processes keep busy from which measurements are in doubt."""
FEW_SAMPLES = 5
"""A device with fewer samples within steps has no utilization by step."""
_SEGMENTS = 60
_UTILIZATION: dict[Device, tuple[Kind, str, float]] = {
    "gpu": ("gpu", "utilization", 1.0),
    "processors": ("process", "cpu_percent", 0.01),
}
"""Kind, field, and factor from the field to utilization."""


@dataclass(frozen=True)
class Samples:
    """Samples of one kind in one run, in the order of attempt, node and line; arrays of shape (samples,)."""

    attempt: NDArray[np.int32]
    rank: NDArray[np.int32]
    """The first rank that uses the GPU, or the rank of the process."""
    host: NDArray[np.object_]
    step: Floats
    """Step of the final model in which the sample lies; NaN outside of them, as during a validation."""
    values: dict[str, Floats]
    """By name of `VALUES`; NaN where the device does not report it."""


def read_samples(attempts: Sequence[RunAttempt], steps: Steps, problems: list[str]) -> dict[Kind, Samples]:
    """The samples of all nodes of a run by kind; messages on unreadable ones are appended to `problems`."""
    samples = {}
    for kind, (pattern, _) in _RECORDS.items():
        fields = {"rank": Int32, **dict.fromkeys(VALUES[kind], float)}
        values = read_records(attempts, pattern, fields, problems)
        attempt, node = (values.pop(name).astype(np.int32) for name in ("attempt", "number"))
        rank = filled(values.pop("rank")).astype(np.int32)
        step = _steps_of(attempt, rank, values["at_s"], steps)
        samples[kind] = Samples(attempt, rank, host_names(attempts, attempt, node), step, values)
    return samples


def _steps_of(attempt: NDArray[np.int32], rank: NDArray[np.int32], at_s: Floats, steps: Steps) -> Floats:
    found = np.full(rank.size, np.nan)
    for number, of_rank in {*zip(attempt.tolist(), rank.tolist(), strict=True)}:
        rows = (attempt == number) & (rank == of_rank)
        own = np.flatnonzero(steps.kept & (steps.attempt == number) & (steps.rank == of_rank))
        records = (steps.seconds["start_s"], steps.seconds["step_s"], steps.step, steps.counts)
        found[rows] = step_at(at_s[rows], *(each[own] for each in records))
    return found


def step_at(
    at_s: ArrayLike, start_s: ArrayLike, step_s: ArrayLike, first: ArrayLike, steps: ArrayLike
) -> Floats:
    """The step in which each instant lies; NaN outside of steps, as during a validation.

    Args:
        at_s: `at_s` of samples of one rank in one attempt, in seconds; any shape.
        start_s, step_s, first, steps: start and duration in seconds, first step and number of steps of each
            step record of that rank in that attempt; one dimension. Records with a start of NaN are left
            out. The steps of an aggregate count as equally long and without pauses.

    Returns:
        Step numbers in the shape of `at_s`.
    """
    known = np.array([start_s, step_s, first, steps], dtype=np.float64)
    known = known[:, ~np.isnan(known[0])]
    before = [[-np.inf], [0.0], [np.nan], [1.0]]  # stands for the time before the first step
    start, took, step, count = np.hstack([before, known[:, np.argsort(known[0], kind="stable")]])
    instants = np.asarray(at_s, dtype=np.float64)
    record = np.searchsorted(start, instants, side="right") - 1
    share = (instants - start[record]) / took[record]
    numbers = step[record] + np.minimum(np.floor(share * count[record]), count[record] - 1)
    return np.where(instants < start[record] + took[record], numbers, np.nan)


def other_load(samples: Samples) -> float | None:
    """Processors of the job that other processes kept busy, on its most loaded node; None if unknown.

    It is the mean over the process samples in steps of the last attempt, at least 0. The ranks of all nodes
    are subtracted, because nodes of a local or mini-cluster run are one machine; of several machines it is
    therefore too small.
    """
    busy, own = samples.values["host_cpu_percent"], samples.values["cpu_percent"]
    rows = ~np.isnan(samples.step) & ~np.isnan(busy)
    if not rows.any():
        return None
    rows &= samples.attempt == samples.attempt[rows].max()
    by_host = _means(busy[rows], samples.host[rows])
    rows &= ~np.isnan(own)
    return max(0.0, max(by_host) - sum(_means(own[rows], samples.rank[rows]))) / 100


def utilization_by_step(samples: Mapping[Kind, Samples], device: Device) -> list[tuple[float, float]]:
    """Step and utilization of rank 0's device, means over segments of steps; empty for few samples.

    Utilization of a `gpu` is the share of time in which a kernel ran; of `processors`, the mean number that
    the process kept busy.
    """
    kind, name, unit = _UTILIZATION[device]
    of_kind = samples[kind]
    value = of_kind.values[name]
    rows = (of_kind.rank == 0) & ~np.isnan(of_kind.step) & ~np.isnan(value)
    if np.count_nonzero(rows) < FEW_SAMPLES:
        return []
    step = of_kind.step[rows]
    segment = (step - 1) // max(1, -(-int(step.max()) // _SEGMENTS))
    return [*zip(_means(step, segment), _means(unit * value[rows], segment), strict=True)]


def _means(values: Floats, groups: NDArray[Any]) -> list[float]:
    """Mean of each group, in their order."""
    return [float(values[groups == group].mean()) for group in np.unique(groups)]
