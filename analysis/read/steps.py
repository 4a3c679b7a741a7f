"""Step records of one run: all attempts and ranks as arrays, and the one choice of its measured steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.read.lines import Columns, Int32, read_columns
from disttrain.records.log_histogram import durations
from disttrain.records.run_directory import Attempt
from disttrain.records.steps import PHASES

Floats = NDArray[np.float64]
SECONDS = ("start_s", "step_s", *PHASES, "comm_exposed_s")
_FIELDS = {**dict.fromkeys(("step", "first", "steps", "samples"), Int32), **dict.fromkeys(SECONDS, float)}
_BINS = {"bins": list[tuple[int, int]]}
_NEVER = np.iinfo(np.int64).max
_NAMED = 8
"""Ranks that a message names."""


@dataclass(frozen=True)
class Cube:
    """Measured steps that all of some ranks recorded: a matrix of shape (ranks, records) for each name.

    A column is a step record. That of several steps holds their sum; `counts` are its steps.
    """

    first: NDArray[np.int32]
    """First step of each record."""
    counts: NDArray[np.int32]
    ranks: tuple[int, ...]
    """Rank of each row, ascending."""
    hosts: NDArray[np.object_]
    """Node of each rank in each record, which differs between attempts; empty if unknown."""
    seconds: Mapping[str, Floats]
    """NaN where not measured."""


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
    """Histogram of an aggregate of rank 0; None for other records."""
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
        """Durations of the measured steps of rank 0, of an aggregate from its histogram; in no order."""
        of_rank = self.measured & (self.rank == 0)
        single = self.seconds["step_s"][of_rank & (self.bins == None)]  # noqa: E711 - by element
        aggregates = [durations(bins) for bins in self.bins[of_rank] if bins]
        return np.concatenate([single, *aggregates])

    def total(self, name: str) -> float:
        """Sum over the measured records of all ranks, of `samples`, `counts` or a figure of `SECONDS`."""
        values = self.seconds[name] if name in self.seconds else getattr(self, name)
        return float(values[self.measured].sum(dtype=np.float64))

    def mean_s(self, name: str) -> float | None:
        """Mean seconds of a measured step over the ranks and records that have the figure; else None."""
        known = self.measured & ~np.isnan(self.seconds[name])
        steps = self.counts[known].sum()
        return float(self.seconds[name][known].sum() / steps) if steps else None

    def cube(self, names: Iterable[str], ranks: Sequence[int] | None = None) -> Cube | None:
        """The measured records that all of these ranks have (all of the run by default); None without one."""
        chosen = self.measured if ranks is None else self.measured & np.isin(self.rank, ranks)
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((self.attempt[rows], self.rank[rows], self.step[rows]))]
        step, rank = self.step[rows], self.rank[rows]
        last = np.r_[(step[1:] != step[:-1]) | (rank[1:] != rank[:-1]), True][: rows.size]
        rows, step, rank = rows[last], step[last], rank[last]
        ids = np.unique(rank)
        _, inverse, times = np.unique(step, return_inverse=True, return_counts=True)
        rows = rows[times[inverse] == ids.size]
        if not rows.size:
            return None
        rows = rows.reshape(-1, ids.size).T
        seconds = {name: self.seconds[name][rows] for name in names}
        ranks = tuple(int(each) for each in ids)
        return Cube(self.step[rows[0]], self.counts[rows[0]], ranks, self.host[rows], seconds)

    def missing_ranks(self, world_size: int, last_attempt: int) -> list[str]:
        """Texts on ranks whose records of the last attempt are missing, or hold fewer measured steps than the
        others'."""
        last = self.attempt == last_attempt
        present = np.bincount(self.rank[last], minlength=world_size)[:world_size] > 0
        rows = last & self.measured
        steps = np.bincount(self.rank[rows], self.counts[rows], minlength=world_size)[:world_size]
        most = int(steps.max(initial=0))
        texts = []
        if not present.all():
            texts.append(f"no step records of {_ranks(np.flatnonzero(~present), world_size)}")
        short = np.flatnonzero(present & (steps < most))
        if short.size:
            fewest = int(steps[short].min())
            named = _ranks(short, world_size)
            texts.append(f"{named} recorded fewer measured steps than the others ({fewest:,} of {most:,})")
        return texts


def read_steps(attempts: Iterable[Attempt], problems: list[str]) -> Steps:
    """The step records of these attempts; none are `measured` yet, and none has a host.

    Messages on records that cannot be read are appended to `problems`.
    """
    parts = [
        _read_file(attempt.number, rank, path, problems)
        for attempt in attempts
        for rank, path in files_by_number(attempt.path, "steps-")
    ]
    parts = [part for part in parts if part["step"].size] or [_columns(0, 0, {})]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    seconds = {name: rows.pop(name) for name in SECONDS}
    nothing = np.zeros(rows["step"].size, dtype=np.bool_)
    host = np.full(nothing.size, "", dtype=object)
    return Steps(seconds=seconds, host=host, kept=nothing, measured=nothing, **rows)


def files_by_number(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """The JSON Lines files of ranks or nodes, `PREFIXnumber.jsonl`, by number."""
    files = ((path.stem.removeprefix(prefix), path) for path in folder.glob(f"{prefix}*.jsonl"))
    return sorted((int(number), path) for number, path in files if number.isdigit())


def choose_measured(
    steps: Steps, last_attempt: int | None, left_out: Sequence[Sequence[int]] | None, warmup: int
) -> Steps:
    """The steps with `kept` and `measured`: the only place where steps are left out.

    An attempt that resumes from a checkpoint repeats the steps after it: of each rank, records of older
    attempts from the first step of a newer one are not kept. Attempts after `last_attempt` do not count. A
    record that begins in a range is left out as a whole.

    Args:
        steps: of `read_steps`.
        last_attempt: the attempt that wrote metrics.json; None without that file.
        left_out: first and last step of each range that metrics.json excludes; None without that file.
        warmup: first steps after each start to leave out as well.
    """
    kept = steps.step < _lineage_ends(steps, last_attempt)
    _, starts = np.unique(steps.attempt, return_index=True)
    ranges = [*(left_out or ()), *((steps.step[at], steps.step[at] + warmup - 1) for at in starts)]
    measured = kept.copy()
    for first, last in ranges:
        measured &= (steps.step < first) | (steps.step > last)
    return replace(steps, kept=kept, measured=measured)


def _lineage_ends(steps: Steps, last_attempt: int | None) -> NDArray[np.int64]:
    """For each record, the first step of the newer attempts of its rank; 0 in attempts after the last."""
    ends = np.zeros(steps.size, dtype=np.int64)
    change = (np.diff(steps.attempt) != 0) | (np.diff(steps.rank) != 0)
    bounds = np.r_[0, np.flatnonzero(change) + 1, steps.size]
    begun: dict[int, int] = {}
    for start, end in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        if start == end or (last_attempt is not None and steps.attempt[start] > last_attempt):
            continue
        rank, first = int(steps.rank[start]), int(steps.step[start])
        ends[start:end] = begun.get(rank, _NEVER)
        begun[rank] = min(first, begun.get(rank, first))
    return ends


def _read_file(attempt: int, rank: int, path: Path, problems: list[str]) -> Columns:
    records = read_columns(path, _FIELDS | (_BINS if rank == 0 else {}), problems)
    step = np.where(np.isnan(records["first"]), records["step"], records["first"])
    whole = ~np.isnan(step) & ~np.isnan(records["step_s"])
    if not whole.all():
        problems.append(f"{path}: {np.count_nonzero(~whole)} records without `step` or `step_s`")
    records = {name: values[whole] for name, values in (records | {"step": step}).items()}
    return _columns(attempt, rank, records)


def _columns(attempt: int, rank: int, records: Columns) -> Columns:
    size = records["step"].size if records else 0
    empty = np.empty(size)
    counts = {"steps": 1, "samples": 0}
    whole = {name: np.nan_to_num(records.get(name, empty), nan=absent) for name, absent in counts.items()}
    return {
        "attempt": np.full(size, attempt, dtype=np.int16),
        "rank": np.full(size, rank, dtype=np.int32),
        "step": records.get("step", empty).astype(np.int32),
        "counts": whole["steps"].astype(np.int32),
        "samples": whole["samples"].astype(np.int32),
        "bins": records.get("bins", np.full(size, None, dtype=object)),
        **{name: records.get(name, empty) for name in SECONDS},
    }


def _ranks(ranks: NDArray[Any], world_size: int) -> str:
    """`rank 3`, `ranks 1, 2 of 4`, `all 4 ranks`."""
    if len(ranks) == world_size:
        return "its rank" if world_size == 1 else f"all {world_size} ranks"
    named = ", ".join(str(rank) for rank in ranks[:_NAMED])
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more} of {world_size}"
