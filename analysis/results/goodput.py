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
from typing import Literal, get_args

import numpy as np

from analysis.read.run import Run
from analysis.read.steps import Steps
from disttrain.records import gpu_hours

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


def job_time(run: Run) -> JobTime | None:
    """The time of one run; None where its starts are not on record.

    The two clocks of its samples place the steps of rank 0 in time.
    """
    usage = run.usage
    if usage is None or not usage.starts:
        return None
    starts = sorted(usage.starts, key=lambda each: each.started)
    spans = {each.number: each.span for each in run.attempts if each.span is not None}
    intervals = _queues(starts) + _without_attempt(starts, [began for began, _ in spans.values()])
    loops = _loop_starts(run)
    rank_0 = run.steps.chosen(run.steps.rank == 0)
    began_before = [_epoch(start.started) for start in starts]
    evaluations = {each.step: each.elapsed_s or 0.0 for each in run.curves.get("eval_history", ())}
    name: JobClass = "start_up"
    for number, (began, recorded_end) in sorted(spans.items(), key=lambda item: item[1][0]):
        ended = max(began, recorded_end)  # clocks of machines differ
        if not began - CLOCKS_S <= loops.get(number, began) <= ended + CLOCKS_S:
            del loops[number]  # a clock was set during the run
        found = _of_steps(rank_0.chosen(rank_0.attempt == number), evaluations, loops.get(number), ended)
        begins = max((at for at in began_before if at <= began + CLOCKS_S), default=began)
        intervals.append(Interval(begins, min((each.start for each in found), default=ended), name))
        intervals += found
        began_before.append(ended)
        name = "restart"
    first = min(_epoch(at) for start in starts for at in (start.submitted, start.started) if at)
    last = max(_epoch(start.ended) for start in starts)
    placed = set(rank_0.attempt.tolist()) <= loops.keys()
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
    steps: Steps, evaluations: Mapping[int, float], loop: float | None, ends: float
) -> list[Interval]:
    """Steps of one attempt and the validations between them, at their positions in time."""
    start_s = steps.seconds["start_s"]
    steps = steps.chosen(np.argsort(start_s)[: np.count_nonzero(~np.isnan(start_s))])
    if not steps.size:
        return []
    begins = steps.seconds["start_s"]
    finish = begins + steps.seconds["step_s"]
    saving = np.nan_to_num(steps.seconds["checkpoint_s"])
    if loop is None:
        loop = ends - float(finish.max())
    columns = (begins + loop, finish + loop, saving, steps.kept, steps.step + steps.counts - 1)
    following = [*(begins[1:] + loop).tolist(), ends]
    found = []
    for begin, end, save, kept, last, after in zip(
        *(each.tolist() for each in columns), following, strict=True
    ):
        found.append(Interval(begin, end - save if kept else end, "training" if kept else "rework"))
        if kept and save > 0:
            found.append(Interval(end - save, end, "checkpoint"))
        if last in evaluations:
            found.append(Interval(end, min(end + evaluations[last], after), "evaluation"))
    return found


def _without_attempt(starts: Sequence[gpu_hours.StartGpuHours], began: Sequence[float]) -> list[Interval]:
    """Starts of the job that ended before an attempt began."""
    spans = [(_epoch(start.started), _epoch(start.ended)) for start in starts]
    return [
        Interval(s, e, "restart")
        for s, e in spans
        if not any(s - CLOCKS_S <= at <= e + CLOCKS_S for at in began)
    ]


def _loop_starts(run: Run) -> dict[int, float]:
    """Start of rank 0's loop in each attempt, in seconds since the epoch: the median over its samples."""
    parts = [(samples, samples.rank == 0) for samples in run.samples.values()]
    attempt = np.concatenate([samples.attempt[rows] for samples, rows in parts])
    start = np.concatenate(
        [(samples.values["time"] - samples.values["at_s"])[rows] for samples, rows in parts]
    )
    known = {int(number): start[(attempt == number) & ~np.isnan(start)] for number in np.unique(attempt)}
    return {number: float(np.median(starts)) for number, starts in known.items() if starts.size}


def _epoch(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
