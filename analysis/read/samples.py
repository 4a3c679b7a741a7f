"""Samples of the GPUs and processes of one run, and what they show: utilization, load of other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.read.attempts import RunAttempt
from analysis.read.lines import Int32, read_columns
from analysis.read.steps import Floats, Steps, files_by_number
from disttrain.records.base import Record
from disttrain.records.hardware import GpuSample, HostSample

Kind = Literal["gpu", "process"]
Device = Literal["gpu", "processors"]
_RECORDS: dict[Kind, tuple[str, type[Record]]] = {
    "gpu": ("gpu-node", GpuSample),
    "process": ("host-node", HostSample),
}
_NOT_VALUES = ("schema_version", "rank")


def _is_number(annotation: object) -> bool:
    return {*(get_args(annotation) or [annotation])} <= {int, float, type(None)}


VALUES: dict[Kind, list[str]] = {
    kind: [
        name
        for name, each in record.model_fields.items()
        if name not in _NOT_VALUES and _is_number(each.annotation)
    ]
    for kind, (_, record) in _RECORDS.items()
}
"""Numeric fields of the samples by kind (`disttrain.records.hardware`), in their recorded units."""

OTHER_LOAD = 0.1
"""Share of the processors that other processes keep busy from which measurements are in doubt."""
FEW_SAMPLES = 5
"""A device with fewer samples within steps has no utilization by step."""
_SEGMENTS = 60
_UTILIZATION: tuple[tuple[Kind, Device, str, float], ...] = (
    ("gpu", "gpu", "utilization", 1.0),
    ("process", "processors", "cpu_percent", 0.01),
)
"""Kind, device, field, and factor from the field to utilization."""


@dataclass(frozen=True)
class Samples:
    """Samples of one kind in one run, in the order of attempt, node and line; arrays of shape (samples,)."""

    kind: Kind
    attempt: NDArray[np.int16]
    rank: NDArray[np.int32]
    """The first rank that uses the GPU, or the rank of the process."""
    host: NDArray[np.object_]
    step: Floats
    """Step of the final model in which the sample lies; NaN outside of them, as during a validation."""
    values: dict[str, Floats]
    """By name of `VALUES`; NaN where the device does not report it."""


def read_samples(attempts: Sequence[RunAttempt], steps: Steps, problems: list[str]) -> dict[Kind, Samples]:
    """The samples of all nodes of a run by kind; messages on unreadable ones are appended to `problems`."""
    return {kind: _read_kind(kind, attempts, steps, problems) for kind in get_args(Kind)}


def _read_kind(kind: Kind, attempts: Sequence[RunAttempt], steps: Steps, problems: list[str]) -> Samples:
    parts: list[Samples] = []
    kept = steps.chosen(steps.kept)
    fields = {"rank": Int32, **dict.fromkeys(VALUES[kind], float)}
    for attempt in attempts:
        for node, path in files_by_number(attempt.files.path, _RECORDS[kind][0]):
            values = read_columns(path, fields, problems)
            rank = np.nan_to_num(values.pop("rank")).astype(np.int32)
            number = np.full(rank.size, attempt.number, dtype=np.int16)
            host = np.full(rank.size, attempt.hosts(node + 1)[node], dtype=object)
            step = _steps_of(rank, values["at_s"], kept.chosen(kept.attempt == attempt.number))
            parts.append(Samples(kind, number, rank, host, step, values))
    joined = {
        name: np.concatenate([np.empty(0, dtype), *(getattr(part, name) for part in parts)]).astype(dtype)
        for name, dtype in {"attempt": np.int16, "rank": np.int32, "host": object, "step": np.float64}.items()
    }
    values = {
        name: np.concatenate([np.empty(0), *(part.values[name] for part in parts)]) for name in VALUES[kind]
    }
    return Samples(kind, values=values, **joined)


def _steps_of(rank: NDArray[np.int32], at_s: Floats, steps: Steps) -> Floats:
    found = np.full(rank.size, np.nan)
    for number in np.unique(rank):
        of_rank = steps.chosen(steps.rank == number)
        start_s, step_s = of_rank.seconds["start_s"], of_rank.seconds["step_s"]
        rows = rank == number
        found[rows] = step_at(at_s[rows], start_s, step_s, of_rank.step, of_rank.counts)
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
    instants = np.asarray(at_s, dtype=np.float64)
    found = np.full(instants.shape, np.nan)
    known = np.array([start_s, step_s, first, steps], dtype=np.float64)
    known = known[:, ~np.isnan(known[0])]
    if not known.size:
        return found
    start, took, step, count = known[:, np.argsort(known[0], kind="stable")]
    record = np.searchsorted(start, instants, side="right") - 1
    inside = (record >= 0) & (instants < start[record] + took[record])
    record = record[inside]
    into = (instants[inside] - start[record]) / took[record] * count[record]
    found[inside] = step[record] + np.minimum(np.floor(into), count[record] - 1)
    return found


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
    by_host = [np.nanmean(busy[rows & (samples.host == host)]) for host in set(samples.host[rows])]
    ranks = (own[rows & (samples.rank == rank)] for rank in np.unique(samples.rank[rows]))
    by_rank = [np.nanmean(each) for each in ranks if not np.isnan(each).all()]
    return max(0.0, float(max(by_host) - sum(by_rank)) / 100)


def utilization_by_step(samples: Mapping[Kind, Samples]) -> dict[Device, tuple[Floats, Floats]]:
    """Step and utilization of rank 0's devices, means over segments of steps.

    Utilization of a `gpu` is the share of time in which a kernel ran; of `processors`, the mean number that
    the process kept busy. Devices with few samples are left out.
    """
    means: dict[Device, tuple[Floats, Floats]] = {}
    for kind, device, name, unit in _UTILIZATION:
        of_kind = samples[kind]
        value = of_kind.values[name]
        rows = (of_kind.rank == 0) & ~np.isnan(of_kind.step) & ~np.isnan(value)
        if np.count_nonzero(rows) < FEW_SAMPLES:
            continue
        step = of_kind.step[rows]
        segment = ((step - 1) // max(1, -(-int(step.max()) // _SEGMENTS))).astype(int)
        _, segment = np.unique(segment, return_inverse=True)
        count = np.bincount(segment)
        means[device] = (
            np.bincount(segment, step) / count,
            unit * np.bincount(segment, value[rows]) / count,
        )
    return means
