"""Goodput of a whole job: every second of a run, from its submission to its end, in exactly one class.

    queue        from a submission, or the end of the start before it, to the start of the job
    start_up     from the start of a run's first attempt to its first step
    restart      the same for each later attempt, and starts that ended before an attempt
    training     steps that are part of the final model
    checkpoint   saving within those steps
    rework       steps that a later attempt repeated
    evaluation   validations between steps
    other        the rest: between steps (`gap_s`), and from the last recorded step to the end of the attempt

    goodput = training / all seconds

Devices are held in every class but the queue. Work after the last recorded step of a failed attempt is lost
work, but its length is not on record; it is part of `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from disttrain.records import gpu_hours
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

JobClass = Literal["queue", "start_up", "restart", "training", "checkpoint", "rework", "evaluation", "other"]
CLOCKS_S = 1.0
"""Clocks of the scheduler and of a node may differ by this much."""
CLASSES: tuple[JobClass, ...] = get_args(JobClass)


@dataclass(frozen=True)
class Interval:
    """Time of one class, in seconds since the epoch."""

    start: float
    end: float
    name: JobClass


@dataclass(frozen=True)
class JobTime:
    """Seconds of a run in each class; they sum to `whole_s`."""

    seconds: dict[JobClass, float]
    devices: int
    """GPUs held by the run, or ranks where it had none."""
    placed: bool
    """Whether the steps' position in time is on record. Otherwise the last step of each attempt ends
    with the attempt."""

    @property
    def whole_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Share of all seconds spent in steps of the final model."""
        return self.seconds["training"] / self.whole_s if self.whole_s else 0.0

    @property
    def device_seconds(self) -> dict[JobClass, float]:
        """Device-seconds of each class; the queue holds no device."""
        return {name: 0.0 if name == "queue" else s * self.devices for name, s in self.seconds.items()}


def account(start: float, end: float, intervals: Iterable[Interval]) -> dict[JobClass, float]:
    """Seconds of each class between `start` and `end`; they sum to `end - start`.

    Of intervals that overlap, the one that began first counts. Time outside of all intervals is `other`.
    """
    found: dict[JobClass, float] = dict.fromkeys(CLASSES, 0.0)
    at = start
    for each in sorted(intervals, key=lambda interval: (interval.start, interval.end)):
        first, last = min(max(each.start, at), end), min(each.end, end)
        found["other"] += max(0.0, first - at)
        found[each.name] += max(0.0, last - first)
        at = max(first, last)
    found["other"] += max(0.0, end - at)
    return found


def job_time(path: Path | str, steps: pd.DataFrame, hardware: pd.DataFrame) -> JobTime | None:
    """The time of one run.

    Args:
        path: run directory.
        steps: its rows in `Frames.steps`; those of rank 0 count.
        hardware: its rows in `Frames.hardware`, whose two clocks place the steps in time.

    Returns:
        None where the starts of the run are not on record.
    """
    run = RunDir(Path(path))
    usage = gpu_hours.read(run)
    if usage is None or not usage.starts:
        return None
    starts = sorted(usage.starts, key=lambda each: each.started)
    attempts = sorted(gpu_hours.attempt_records(run), key=lambda record: record["started"])
    intervals = _queues(starts) + _without_attempt(starts, attempts)
    loops = _loop_starts(hardware)
    of_rank = steps[steps["rank"] == 0]
    began_before = [_epoch(start.started) for start in starts]
    progress, evaluations = gpu_hours.last_progress(run), _evaluations(run)
    name: JobClass = "start_up"
    for record in attempts:
        number, began = record["attempt"], _epoch(record["started"])
        ended = max(began, _epoch(gpu_hours.end_of_attempt(record, progress)))  # clocks of machines differ
        own = of_rank[of_rank["attempt"] == number]
        if not began - CLOCKS_S <= loops.get(number, began) <= ended + CLOCKS_S:
            del loops[number]  # a clock was set during the run
        found = _of_steps(own, evaluations, loops.get(number), ended)
        begins = max((at for at in began_before if at <= began + CLOCKS_S), default=began)
        intervals.append(Interval(begins, min((each.start for each in found), default=ended), name))
        intervals += found
        began_before.append(ended)
        name = "restart"
    first = min(_epoch(at) for start in starts for at in (start.submitted, start.started) if at)
    last = max(_epoch(start.ended) for start in starts)
    placed = set(of_rank["attempt"].unique()) <= loops.keys()
    # Differences of times since 1970 are exact to 0.2 us. Rounded, they print as the same figure elsewhere.
    found_s = {name: round(value, 6) for name, value in account(first, last, intervals).items()}
    return JobTime(found_s, starts[-1].devices, placed)


def _queues(starts: Sequence[gpu_hours.StartGpuHours]) -> list[Interval]:
    """Time before each start: from its submission, or from the end of an earlier start."""
    found, before = list[Interval](), None
    for start in starts:
        began = _epoch(start.started)
        known = [at for at in (start.submitted and _epoch(start.submitted), before) if at]
        found.append(Interval(min(known, default=began), began, "queue"))
        before = _epoch(start.ended)
    return found


def _of_steps(
    rows: pd.DataFrame, evaluations: Mapping[int, float], loop: float | None, ends: float
) -> list[Interval]:
    """Steps of one attempt and the validations between them, at their positions in time."""
    rows = rows[rows["start_s"].notna()].sort_values("start_s")
    if rows.empty:
        return []
    begins = rows["start_s"].to_numpy()
    finish = begins + rows["step_s"].to_numpy()
    saving = rows["checkpoint_s"].fillna(0.0).to_numpy()
    if loop is None:
        loop = ends - float(finish.max())
    lasts = (rows["step"] + rows["steps"] - 1).to_numpy()
    found = []
    following = np.append(begins[1:], np.nan)
    for begin, end, save, kept, last, after in zip(
        begins + loop, finish + loop, saving, rows["kept"], lasts, following + loop, strict=True
    ):
        found.append(Interval(begin, end - save if kept else end, "training" if kept else "rework"))
        if kept and save > 0:
            found.append(Interval(end - save, end, "checkpoint"))
        if int(last) in evaluations:
            until = ends if np.isnan(after) else after
            found.append(Interval(end, min(end + evaluations[int(last)], until), "evaluation"))
    return found


def _without_attempt(
    starts: Sequence[gpu_hours.StartGpuHours], attempts: Iterable[dict[str, Any]]
) -> list[Interval]:
    """Starts of the job that ended before an attempt began."""
    began = [_epoch(record["started"]) for record in attempts]
    spans = [(_epoch(start.started), _epoch(start.ended)) for start in starts]
    return [
        Interval(s, e, "restart")
        for s, e in spans
        if not any(s - CLOCKS_S <= at <= e + CLOCKS_S for at in began)
    ]


def _evaluations(run: RunDir) -> dict[int, float]:
    """Duration in seconds of the validation after each step that had one."""
    metrics = read_json_or_none(run.metrics) or {}
    return {int(each["step"]): float(each["elapsed_s"]) for each in metrics.get("eval_history") or []}


def _loop_starts(hardware: pd.DataFrame) -> dict[int, float]:
    """Start of rank 0's loop in each attempt, in seconds since the epoch."""
    of_rank = hardware[hardware["rank"] == 0]
    starts = (of_rank["time_s"] - of_rank["at_s"]).groupby(of_rank["attempt"]).median()
    return {int(attempt): float(start) for attempt, start in starts.items() if np.isfinite(start)}


def _epoch(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
