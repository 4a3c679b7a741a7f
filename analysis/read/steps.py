"""Step records of one run: all attempts and ranks as arrays, and the one choice of its measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.read.attempts import RunAttempt, read_records
from analysis.read.lines import Int32
from disttrain.records.steps import PHASES, durations

Floats = NDArray[np.float64]


def filled(values: Floats, value: float = 0.0) -> Floats:
    """The values, with this one where none was measured."""
    return np.where(np.isnan(values), value, values)


SECONDS = ("start_s", "step_s", *PHASES, "comm_exposed_s")
_FIELDS = {
    **dict.fromkeys(("step", "first", "steps", "samples"), Int32),
    "bins": list[tuple[int, int]],
    **dict.fromkeys(SECONDS, float),
}
_NEVER = np.iinfo(np.int64).max
_NAMED = 8
"""Ranks that a message names."""


@dataclass(frozen=True)
class Steps:
    """Step records of one run in the order of attempt, rank and line, each array of shape (records,)."""

    attempt: NDArray[np.int16]
    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    """The first step of an aggregate."""
    counts: NDArray[np.int32]
    """1, or the number of steps of an aggregate."""
    samples: NDArray[np.int32]
    seconds: Mapping[str, Floats]
    """By name of `SECONDS` (`disttrain.records.steps`): sums for aggregates; NaN where not measured."""
    bins: NDArray[np.object_]
    """Histogram of an aggregate; None for other records."""
    host: NDArray[np.object_]
    """Name of the node; empty if unknown."""
    kept: NDArray[np.bool_]
    """Part of the final model: not repeated after a resume."""
    measured: NDArray[np.bool_]
    """Kept, and neither warm-up nor profiled."""

    @property
    def size(self) -> int:
        return self.step.size

    def chosen(self, rows: NDArray[Any]) -> Steps:
        """The records of these rows, a mask or indices."""
        arrays = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "seconds"}
        seconds = {name: values[rows] for name, values in self.seconds.items()}
        return Steps(seconds=seconds, **{name: array[rows] for name, array in arrays.items()})

    @cached_property
    def measured_ranks(self) -> NDArray[np.int32]:
        """Ranks with measured steps, ascending."""
        return np.unique(self.rank[self.measured])

    @cached_property
    def lowest_rank(self) -> Steps:
        """Measured records of the lowest rank that has any, by step."""
        lowest = self.measured_ranks[:1]
        rows = np.flatnonzero(self.measured & (self.rank == lowest if lowest.size else False))
        return self.chosen(rows[np.argsort(self.step[rows], kind="stable")])

    @property
    def series_s(self) -> Floats:
        """Durations of the measured steps of the lowest rank, in order; shape (steps,). The steps of an
        aggregate count as equally long."""
        first = self.lowest_rank
        return np.repeat(first.seconds["step_s"] / first.counts, first.counts)

    @property
    def durations_s(self) -> Floats:
        """Durations of the measured steps of the lowest rank, of an aggregate from its histogram; in no
        order."""
        first = self.lowest_rank
        single = first.seconds["step_s"][first.bins == None]  # noqa: E711 - by element
        return np.concatenate([single, *(durations(bins) for bins in first.bins if bins)])

    def total(self, name: str) -> float:
        """Sum over the measured records of all ranks, of `samples`, `counts` or a figure of `SECONDS`."""
        values = self.seconds[name] if name in self.seconds else getattr(self, name)
        return float(values[self.measured].sum(dtype=np.float64))

    def mean_s(self, name: str) -> float | None:
        """Mean seconds of a measured step over the ranks and records that have the figure; else None."""
        known = self.measured & ~np.isnan(self.seconds[name])
        steps = self.counts[known].sum()
        return float(self.seconds[name][known].sum() / steps) if steps else None

    @cached_property
    def common(self) -> NDArray[np.intp]:
        """Indices of the measured records that all ranks of the run have, of shape (ranks, records): a column
        is a step record of each of `measured_ranks`. No column without one."""
        rows = np.flatnonzero(self.measured)
        rows = rows[np.lexsort((self.rank[rows], self.step[rows]))]
        ranks = self.measured_ranks.size
        _, inverse, times = np.unique(self.step[rows], return_inverse=True, return_counts=True)
        return rows[times[inverse] == ranks].reshape(-1, max(ranks, 1)).T

    def missing_records(self, world_size: int, measured_steps: int) -> list[str]:
        """A text on the ranks that recorded fewer than these measured steps; empty without one."""
        rank, counts = self.rank[self.measured], self.counts[self.measured]
        steps = np.bincount(rank, counts, minlength=world_size)[:world_size]
        short = np.flatnonzero(steps < measured_steps)
        if not short.size:
            return []
        ranks = ", ".join(map(str, short[:_NAMED])) + (", ..." if short.size > _NAMED else "")
        return [
            f"rank{'s' if short.size > 1 else ''} {ranks} of {world_size} recorded {int(steps.min()):,} of "
            f"{measured_steps:,} measured steps"
        ]


def read_steps(attempts: Sequence[RunAttempt], problems: list[str]) -> Steps:
    """The step records of these attempts; none are `measured` yet, and none has a host.

    Messages on records that cannot be read are appended to `problems`.
    """
    records = read_records(attempts, "steps-*.jsonl", _FIELDS, problems)
    records["step"] = np.where(np.isnan(records["first"]), records["step"], records["first"])
    whole = ~np.isnan(records["step"] + records["step_s"])
    if lacking := np.count_nonzero(~whole):
        problems.append(f"{attempts[0].files.path.parent}: {lacking} records without `step` or `step_s`")
    records = {name: values[whole] for name, values in records.items()}
    nothing = np.zeros(records["step"].size, dtype=np.bool_)
    return Steps(
        attempt=records["attempt"].astype(np.int16),
        rank=records["number"].astype(np.int32),
        step=records["step"].astype(np.int32),
        counts=filled(records["steps"], 1).astype(np.int32),
        samples=filled(records["samples"]).astype(np.int32),
        seconds={name: records[name] for name in SECONDS},
        bins=records["bins"],
        host=np.full(nothing.size, "", dtype=object),
        kept=nothing,
        measured=nothing,
    )


def choose_measured(
    steps: Steps, last_attempt: int | None, left_out: Sequence[tuple[int, int]], warmup: int
) -> Steps:
    """The steps with `kept` and `measured`: the only place where steps are left out.

    An attempt that resumes from a checkpoint repeats the steps after it: of each rank, records of older
    attempts from the first step of a newer one are not kept. Attempts after `last_attempt` do not count. A
    record that begins in a range is left out as a whole.

    Args:
        steps: of `read_steps`.
        last_attempt: the attempt that wrote metrics.json; None without that file.
        left_out: first and last step of each range that metrics.json excludes.
        warmup: first steps after each start to leave out as well.
    """
    kept = np.zeros(steps.size, dtype=np.bool_)
    _, rank = np.unique(steps.rank, return_inverse=True)
    begun = np.full(steps.size, _NEVER)  # by rank, the first step of newer attempts
    for number in np.unique(steps.attempt)[::-1]:
        if last_attempt is None or number <= last_attempt:
            rows = np.flatnonzero(steps.attempt == number)
            kept[rows] = steps.step[rows] < begun[rank[rows]]
            np.minimum.at(begun, rank[rows], steps.step[rows])
    _, starts = np.unique(steps.attempt, return_index=True)
    ranges = [*left_out, *((steps.step[at], steps.step[at] + warmup - 1) for at in starts)]
    measured = kept.copy()
    for first, last in ranges:
        measured &= (steps.step < first) | (steps.step > last)
    return replace(steps, kept=kept, measured=measured)
