"""Goodput of a whole job: every second of a run, from its submission to its end, in exactly one class.

    queue        from a submission, or the end of the start before it, to the start of the job
    start_up     from the first start of the job to its first step
    restart      the same for each later start
    training     steps that are part of the final model
    checkpoint   saving within those steps
    rework       steps that a later attempt repeated
    evaluation   validations between steps
    other        the rest: between steps (`gap_s`), and from the last recorded step to the end of the start

    goodput = training / all seconds

A job changes from one class to the next at instants in time, so that no second counts twice. Devices are held
in every class but the queue. Work after the last recorded step of a failed attempt is lost work, but its
length is not on record; it is part of `other`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from analysis.read.run import Run
from analysis.read.samples import Samples
from analysis.read.steps import Floats, Steps, filled

JobClass = Literal["queue", "start_up", "restart", "training", "checkpoint", "rework", "evaluation", "other"]
CLOCKS_S = 1.0
"""Clocks of the scheduler and of a node may differ by this much."""
CLASSES: tuple[JobClass, ...] = get_args(JobClass)
_KEPT: Sequence[JobClass] = ("training", "checkpoint", "evaluation", "other")
_REPEATED: Sequence[JobClass] = ("rework", "checkpoint", "evaluation", "other")
"""Classes from the changes of one step on."""


@dataclass(frozen=True)
class JobTime:
    """Seconds of a run in each class; they sum to `whole_s`."""

    seconds: dict[JobClass, float]
    devices: float
    """GPUs held by the run, or ranks where it had none."""
    placed: bool
    """Whether the steps' position in time is on record. Otherwise the last step of each attempt ends
    with the start of its job."""

    @property
    def whole_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Share of all seconds spent in steps of the final model."""
        return self.seconds["training"] / self.whole_s if self.whole_s else 0.0


def account(at: ArrayLike, classes: Sequence[JobClass]) -> dict[JobClass, float]:
    """Seconds of each class from the first to the last change, each an instant and the class from then on.

    A change that is earlier than the one before counts at the same instant.
    """
    seconds = dict.fromkeys(CLASSES, 0.0)
    for name, last_s in zip(classes, np.diff(np.maximum.accumulate(at)).tolist(), strict=False):
        seconds[name] += last_s
    return seconds


def job_time(run: Run) -> JobTime | None:
    """The time of one run; None where its starts are not on record.

    The two clocks of the samples of its processes place the steps of rank 0 in time.
    """
    if run.usage is None or not run.usage.starts:
        return None
    starts = sorted(run.usage.starts, key=lambda each: each.started)
    begins = [_epoch(start.started) for start in starts]
    attempts = {
        each.number: max(0, bisect(begins, each.span[0] + CLOCKS_S) - 1) for each in run.attempts if each.span
    }
    evaluations = {each.step: each.elapsed_s or 0.0 for each in run.curves.get("eval_history", ())}
    placed, classes = True, list[JobClass](["queue"])
    changes = [_epoch(starts[0].submitted or starts[0].started)]
    for number, (start, began) in enumerate(zip(starts, begins, strict=True)):
        ended = _epoch(start.ended)
        changes.append(began)
        classes.append("restart" if number else "start_up")
        for attempt in (attempt for attempt, of in attempts.items() if of == number):
            rows = (run.steps.rank == 0) & (run.steps.attempt == attempt)
            steps = run.steps.chosen(rows & ~np.isnan(run.steps.seconds["start_s"]))
            if steps.size:
                loop = _loop_start(run.samples["process"], attempt)
                if not began - CLOCKS_S <= loop <= ended + CLOCKS_S:  # unknown, or a clock was set
                    placed = False
                    loop = ended - steps.seconds["start_s"][-1] - steps.seconds["step_s"][-1]
                changes += (_changes(steps, evaluations, ended - loop) + loop).tolist()
                for kept in steps.kept.tolist():
                    classes += _KEPT if kept else _REPEATED
        changes.append(ended)
        classes.append("queue")
    # Differences of times since 1970 are exact to 0.2 us. Rounded, they print as the same figure elsewhere.
    seconds = {name: round(value, 6) for name, value in account(changes, classes).items()}
    return JobTime(seconds, starts[-1].devices, placed)


def _changes(steps: Steps, evaluations: Mapping[int, float], end_s: float) -> Floats:
    """Changes by the steps of one attempt and the validations between them, four a step, in seconds of the
    training loop, which is `end_s` long."""
    begin = steps.seconds["start_s"]
    end = begin + steps.seconds["step_s"]
    saving = np.where(steps.kept, filled(steps.seconds["checkpoint_s"]), 0.0)
    evaluated = end + [evaluations.get(step, 0.0) for step in (steps.step + steps.counts - 1).tolist()]
    times = np.minimum([begin, end - saving, end, evaluated], np.append(begin[1:], end_s))
    return np.asarray(times.T.ravel())


def _loop_start(samples: Samples, attempt: int) -> float:
    """Start of rank 0's loop in seconds since the epoch: the median over its samples; NaN without any."""
    rows = (samples.attempt == attempt) & (samples.rank == 0)
    starts = (samples.values["time"] - samples.values["at_s"])[rows]
    return float(np.median(starts)) if starts.size else np.nan


def _epoch(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
