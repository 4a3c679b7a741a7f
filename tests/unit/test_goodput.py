"""Every second of a job counts once, in the class where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.run import CurvePoint, Run
from analysis.read.samples import Samples
from analysis.results.goodput import CLASSES, JobClass, JobTime, account, job_time
from analysis.study import make_study
from disttrain.records.gpu_hours import StartGpuHours, summed
from tests.support.straggler_records import steps_of
from tests.support.studies import attempt_of, run_of

START = datetime(2026, 1, 2, 3, 0, tzinfo=UTC).timestamp()
CLASSES_OF_JOB = {
    "queue": 60 + 20,  # 0 to 60, and after the requeue 130 to 150
    "start_up": 20,  # 60 to 80
    "training": 17 + 30,
    "checkpoint": 3,
    "rework": 20,
    "restart": 50,  # 150 to 200
    "evaluation": 4,
    "other": 10 + 11,  # 120 to 130, and 234 to 245
}
STEPS = [(0, 0, 1, True), (0, 10, 2, True), (0, 20, 3, False), (0, 30, 4, False)]
STEPS += [(1, 0, 3, True), (1, 10, 4, True), (1, 20, 5, True)]


class Start(NamedTuple):
    """Seconds of a start of the job."""

    submitted: float | None
    started: float
    ended: float
    devices: int = 2


def at(second: float) -> str:
    return datetime.fromtimestamp(START + second, UTC).isoformat(timespec="milliseconds")


def job(
    starts: Sequence[Start] = (Start(0, 60, 130), Start(130, 150, 245)),
    *,
    steps: Sequence[tuple[int, float, int, bool]] = STEPS,
    checkpoint_s: Sequence[float | None] = (0, 3, 0, 0, 0, 0, 0),
    spans: Sequence[tuple[float, float]] = ((60, 130), (150, 245)),
    loops: Sequence[float] = (80, 200),
    evaluation: tuple[int, float] = (5, 4),
    **fields: Any,
) -> Run:
    """Attempt 0 trains steps 1 to 4 of 10 s and dies; attempt 1 resumes after step 2 and trains to step 5.

    `steps` are attempt, start in the loop, step, and whether it is kept; `loops` the start of each loop by
    the two clocks of the samples.
    """
    usage = [
        StartGpuHours(
            job_id="1",
            submitted=None if each.submitted is None else at(each.submitted),
            started=at(each.started),
            ended=at(each.ended),
            elapsed_s=each.ended - each.started,
            devices=each.devices,
        )
        for each in starts
    ]
    rows = pd.DataFrame(steps, columns=["attempt", "start_s", "step", "kept"])
    rows = rows.assign(rank=0, steps=1, step_s=10.0, measured=False, checkpoint_s=checkpoint_s[: len(rows)])
    attempt = np.arange(len(loops))
    clocks = {"at_s": 5.0 + 0 * attempt, "time": START + np.array(loops) + 5}
    return run_of(
        usage=summed("sacct", "GPU-hours", usage, 2) if starts else None,
        attempts=tuple(
            attempt_of(number=number, span=(START + first, START + last))
            for number, (first, last) in enumerate(spans)
        ),
        steps=steps_of(rows),
        samples={"process": Samples(attempt, 0 * attempt, attempt, attempt, clocks)},
        curves={"eval_history": [CurvePoint(evaluation[0], elapsed_s=evaluation[1])]},
        **fields,
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(-100, 200), st.sampled_from(CLASSES)), min_size=1, max_size=12))
def test_every_second_counts_once(changes: list[tuple[float, JobClass]]) -> None:
    seconds = account(*zip(*changes, strict=True))
    times = [time for time, _ in changes]
    assert sum(seconds.values()) == pytest.approx(max(times) - times[0], abs=1e-9)
    assert min(seconds.values()) >= 0


def test_a_class_lasts_until_the_next_change_and_changes_keep_their_order() -> None:
    seconds = account([1, 3, 2.5, 7], ["queue", "training", "checkpoint", "other"])
    assert {name: value for name, value in seconds.items() if value} == {"queue": 2, "checkpoint": 4}


BETWEEN = (Start(0, 60, 130), Start(130, 135, 140), Start(140, 150, 245))


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, {}),
        # starts that ended before an attempt are restarts
        ({"starts": BETWEEN}, {"queue": 60 + 5 + 10, "restart": 5 + 50}),
        ({"starts": BETWEEN[::-1]}, {"queue": 60 + 5 + 10, "restart": 5 + 50}),
        # without a submission the queue begins with the end of the start before
        ({"starts": [Start(None, 60, 130), Start(140, 150, 245)]}, {"queue": 20}),
        # the scheduler's clock is a second ahead of the node's: a start begins after its attempt
        ({"starts": [Start(0, 60, 135), Start(135, 151, 245)]}, {"queue": 76, "restart": 49, "other": 26}),
        ({"starts": [Start(0, 70, 130), Start(130, 150, 245)]}, {"queue": 90, "start_up": 10}),
        # a short first start is a start-up
        (
            {"starts": [Start(0, 58.5, 60.5), Start(60.5, 150, 245)], "spans": [(60, 60.5), (150, 245)],
             "steps": STEPS[4:], "checkpoint_s": [0] * 3},
            {"queue": 58.5 + 89.5, "start_up": 2, "training": 30, "checkpoint": 0, "rework": 0, "other": 11},
        ),
        ({"steps": STEPS[:4]}, {"restart": 95, "training": 17, "rework": 20, "evaluation": 0, "other": 10}),
        # step 3 of attempt 0 is repeated, and a save may not have been measured
        ({"checkpoint_s": [None, 0.5, 2, None, None, None, 3]}, {"checkpoint": 3.5, "training": 46.5}),
        # attempt 0 ends 10 s after step 4, and step 5 of attempt 1 follows after 2 s
        (
            {"evaluation": (4, 25.0), "steps": [*STEPS[:6], (1, 22, 5, True)]},
            {"evaluation": 10 + 2, "other": 13},
        ),
    ],
)  # fmt: skip
def test_a_resumed_run_is_divided_without_gap(options: dict[str, Any], seconds: dict[str, float]) -> None:
    found = job_time(job(**options))
    assert found is not None
    assert found.seconds == pytest.approx(CLASSES_OF_JOB | seconds)
    assert found.placed
    assert found.goodput == found.seconds["training"] / found.whole_s
    assert found.devices == 2


@pytest.mark.parametrize(
    ("loops", "placed"),
    [((80, 149), True), ((80, 148.5), False), ((80, 246), True), ((80, 246.5), False), ((), False)],
)
def test_a_loop_outside_of_its_attempt_is_not_believed(loops, placed) -> None:
    """A clock that was set during the run; clocks of machines differ by up to a second."""
    found = job_time(job(loops=loops))
    assert found.placed == placed
    if not placed:
        assert found.seconds["restart"] == pytest.approx(245 - 30 - 150), (
            "the last step ends with the attempt"
        )
        assert found.whole_s == 245
    assert min(found.seconds.values()) >= 0


def test_the_devices_are_those_of_the_last_start_and_a_run_without_a_start_has_no_time() -> None:
    assert job_time(job([Start(0, 60, 130, 3), Start(130, 150, 245, 4)])).devices == 4
    assert job_time(job([])) is None
    assert JobTime(dict.fromkeys(CLASSES, 0.0), 1, placed=True).goodput == 0


def test_queue_time_prints_as_that_of_the_cost_of_the_runs() -> None:
    """Times since 1970 differ by 2.85500002 s, and the two times of day by 2.855 s."""
    run = job([Start(57.145, 60, 245)])
    assert job_time(run).seconds["queue"] == run.usage.queue_wait_s


def test_a_study_has_the_times_of_started_runs_that_record_steps() -> None:
    runs = [
        job(),
        job(name="failed", state="failed", included=False),
        job(name="running", state="running"),
        job(name="script", reported={"loss": 1.0}),
        job([], name="planned"),
    ]
    assert [*make_study(runs).job_times] == [run.path for run in runs[:2]]
