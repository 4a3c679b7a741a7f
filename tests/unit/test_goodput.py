"""Every second of a job counts once, in the class where it belongs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.attempts import read_attempts
from analysis.read.run import CurvePoint
from analysis.read.samples import Samples
from analysis.read.steps import SECONDS, Steps
from analysis.results import goodput
from analysis.results.goodput import CLASSES, JobClass, JobTime, account
from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import StartGpuHours, submission_count, summed
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run

START = datetime(2026, 1, 2, 3, 0, tzinfo=UTC).timestamp()


@given(st.lists(st.tuples(st.floats(-100, 200), st.sampled_from(CLASSES)), min_size=1, max_size=12))
def test_every_second_counts_once(changes: list[tuple[float, JobClass]]) -> None:
    seconds = account(*zip(*changes, strict=True))
    times = [time for time, _ in changes]
    assert sum(seconds.values()) == pytest.approx(max(times) - times[0], abs=1e-9)
    assert min(seconds.values()) >= 0


def test_a_class_lasts_until_the_next_change_and_changes_keep_their_order() -> None:
    seconds = account([1, 3, 2.5, 7], ["queue", "training", "checkpoint", "other"])
    assert {name: value for name, value in seconds.items() if value} == {"queue": 2, "checkpoint": 4}


def at(second: float) -> str:
    return datetime.fromtimestamp(START + second, UTC).isoformat(timespec="milliseconds")


def resumed_run(folder: Path) -> tuple[RunDir, pd.DataFrame, pd.DataFrame]:
    """Attempt 0 trains steps 1 to 4 of 10 s and dies; attempt 1 resumes after step 2 and trains to step 5."""
    run = fake_run(folder / "sweep" / "run")
    first = read_json(run.attempt(0).record)
    times = [(0, 60, 130), (130, 150, 245)]  # submitted, started, ended
    for number, (submitted, started, ended) in enumerate(times):
        write_json(
            run.attempt(number).record,
            first
            | {"attempt": number, "submission": 0, "submitted": at(submitted)}
            | {"started": at(started), "ended": at(ended)},
        )
    metrics = read_json(run.metrics)
    metrics["eval_history"] = [metrics["eval_history"][0] | {"step": 5, "elapsed_s": 4.0}]
    write_json(run.metrics, metrics)
    rows = [
        {"attempt": attempt, "step": step, "start_s": 10.0 * place, "kept": kept}
        for attempt, place, step, kept in [
            (0, 0, 1, True),
            (0, 1, 2, True),
            (0, 2, 3, False),
            (0, 3, 4, False),
            (1, 0, 3, True),
            (1, 1, 4, True),
            (1, 2, 5, True),
        ]
    ]
    steps = pd.DataFrame(rows).assign(rank=0, steps=1, step_s=10.0, checkpoint_s=0.0)
    steps.loc[1, "checkpoint_s"] = 3.0
    hardware = pd.DataFrame(
        {"attempt": [0, 1], "rank": 0, "at_s": 5.0, "time_s": [START + 80 + 5, START + 200 + 5]}
    )
    return run, steps, hardware


def job_time(path: Path, steps: pd.DataFrame, hardware: pd.DataFrame) -> JobTime | None:
    """`goodput.job_time` of a run with these steps and samples."""
    run, size = RunDir(path), len(steps)
    columns = {name: steps[name].to_numpy() for name in ("attempt", "rank", "step", "kept")}
    seconds = {
        name: steps[name].to_numpy(float) if name in steps else np.full(size, np.nan) for name in SECONDS
    }
    text, counts = np.full(size, "", dtype=object), steps["steps"].to_numpy()
    records = Steps(
        **columns,
        counts=counts,
        samples=counts,
        seconds=seconds,
        bins=text,
        host=text,
        measured=columns["kept"],
    )
    values = {"time": hardware["time_s"].to_numpy(float), "at_s": hardware["at_s"].to_numpy(float)}
    attempt, rank = hardware["attempt"].to_numpy(), hardware["rank"].to_numpy()
    points = (read_json(run.metrics) if run.metrics.exists() else {}).get("eval_history", [])
    return goodput.job_time(
        SimpleNamespace(
            usage=gpu_hours.read(run),
            attempts=read_attempts(run, []),
            steps=records,
            samples={"process": Samples(attempt, rank, attempt, attempt, values)},
            curves={"eval_history": msgspec.convert(points, list[CurvePoint])},
        )  # type: ignore[arg-type]
    )


def test_a_resumed_run_is_divided_without_gap(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.placed
    assert found.seconds == pytest.approx(
        {
            "queue": 60 + 20,  # 0 to 60, and after the requeue 130 to 150
            "start_up": 20,  # 60 to 80
            "training": 17 + 30,
            "checkpoint": 3,
            "rework": 20,
            "restart": 50,  # 150 to 200
            "evaluation": 4,
            "other": 10 + 11,  # 120 to 130, and 234 to 245
        }
    )
    assert found.whole_s == pytest.approx(245)
    assert found.goodput == pytest.approx(47 / 245)


def accounted(run: RunDir, starts: list[tuple[float | None, float, float, int]]) -> None:
    """Write `usage.json` with starts of (submission, start, end, devices)."""
    found = [
        StartGpuHours(
            job_id="1",
            submitted=None if submitted is None else at(submitted),
            started=at(started),
            ended=at(ended),
            elapsed_s=ended - started,
            devices=devices,
        )
        for submitted, started, ended, devices in starts
    ]
    noted = summed("sacct", "GPU-hours", found, 2).model_dump()
    write_json(run.usage, noted | {"submissions": submission_count(run)})


def test_starts_that_ended_before_an_attempt_are_restarts(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    accounted(run, [(0, 60, 130, 2), (130, 135, 140, 3), (140, 150, 245, 4)])
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.seconds["queue"] == pytest.approx(60 + 5 + 10)
    assert found.seconds["restart"] == pytest.approx(5 + 50)
    assert found.devices == 4, "those of the last start"


def test_the_queue_begins_with_the_submission_or_with_the_end_of_the_start_before(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    accounted(run, [(None, 60, 130, 2), (140, 150, 245, 2)])
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.seconds["queue"] == pytest.approx(20)
    assert found.whole_s == pytest.approx(245 - 60)


def test_the_end_of_a_start_after_its_attempt_is_other_time(tmp_path: Path) -> None:
    """The scheduler's clock is a second ahead of the node's: the second start begins after its attempt."""
    run, steps, hardware = resumed_run(tmp_path)
    accounted(run, [(0, 60, 135, 2), (135, 151, 245, 2)])
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.seconds["queue"] == pytest.approx(60 + 16)
    assert found.seconds["restart"] == pytest.approx(49)
    assert found.seconds["other"] == pytest.approx(10 + 11 + 5)
    assert found.seconds["training"] == pytest.approx(47)


def test_a_short_first_start_is_a_start_up(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    first = read_json(run.attempt(0).record)
    write_json(run.attempt(0).record, first | {"started": at(60), "ended": at(60.5)})
    accounted(run, [(0, 58.5, 60.5, 2), (60.5, 150, 245, 2)])
    found = job_time(run.path, steps[steps["attempt"] == 1], hardware)
    assert found is not None
    assert found.seconds["start_up"] == pytest.approx(2)
    assert found.seconds["restart"] == pytest.approx(50)


def test_an_attempt_on_a_clock_behind_that_of_the_scheduler_has_no_negative_time(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    accounted(run, [(0, 70, 130, 2), (130, 150, 245, 2)])
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert (found.seconds["queue"], found.seconds["start_up"]) == pytest.approx((70 + 20, 10))


@pytest.mark.parametrize(("loop", "placed"), [(149, True), (148.5, False), (246, True), (246.5, False)])
def test_a_loop_outside_of_its_attempt_is_not_believed(tmp_path: Path, loop: float, placed: bool) -> None:
    """A clock that was set during the run; clocks of machines differ by up to a second."""
    run, steps, hardware = resumed_run(tmp_path)
    hardware.loc[1, "time_s"] = START + loop + 5
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.placed == placed
    if not placed:
        assert found.seconds["restart"] == pytest.approx(245 - 30 - 150), (
            "the last step ends with the attempt"
        )


def test_an_attempt_without_steps_is_a_restart_as_a_whole(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    found = job_time(run.path, steps[steps["attempt"] == 0], hardware)
    assert found is not None
    assert found.seconds["restart"] == pytest.approx(245 - 150)


def test_an_attempt_without_an_end_lasts_until_its_last_progress(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    expected = job_time(run.path, steps, hardware.iloc[:0])
    write_json(run.attempt(1).record, read_json(run.attempt(1).record) | {"ended": None})
    write_json(run.progress, {"attempt": 1, "updated": START + 245})
    assert job_time(run.path, steps, hardware.iloc[:0]) == expected


def test_saving_counts_where_it_was_measured_and_the_step_was_kept(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    steps["checkpoint_s"] = [None, 0.5, 2.0, None, None, None, 3.0]  # step 3 of attempt 0 is repeated
    found = job_time(run.path, steps.astype({"checkpoint_s": float}), hardware)
    assert found is not None
    assert found.seconds["checkpoint"] == pytest.approx(3.5)
    assert found.seconds["training"] == pytest.approx(50 - 3.5)
    assert found.seconds["rework"] == pytest.approx(20)


def test_a_validation_ends_with_the_next_step_or_the_attempt(tmp_path: Path) -> None:
    """That of step 4: attempt 0 ends 10 s after the step, and step 5 of attempt 1 follows after 2 s."""
    run, steps, hardware = resumed_run(tmp_path)
    metrics = read_json(run.metrics)
    metrics["eval_history"] = [metrics["eval_history"][0] | {"step": 4, "elapsed_s": 25.0}]
    write_json(run.metrics, metrics)
    steps.loc[6, "start_s"] += 2.0
    found = job_time(run.path, steps, hardware)
    assert found is not None
    assert found.seconds["evaluation"] == pytest.approx(10 + 2)
    assert found.seconds["queue"] == pytest.approx(60 + 20)
    assert found.seconds["training"] == pytest.approx(47)


def test_without_samples_the_last_step_ends_with_the_attempt(tmp_path: Path) -> None:
    run, steps, hardware = resumed_run(tmp_path)
    found = job_time(run.path, steps, hardware.iloc[:0])
    assert found is not None
    assert not found.placed
    assert found.whole_s == pytest.approx(245)
    assert found.seconds["start_up"] == pytest.approx(30)


def test_an_attempt_that_ends_before_it_began_has_no_length(tmp_path: Path) -> None:
    """The clocks of the machines that write the two times may differ."""
    run, steps, hardware = resumed_run(tmp_path)
    second = read_json(run.attempt(1).record)
    write_json(run.attempt(1).record, second | {"ended": at(140)})
    found = job_time(run.path, steps, hardware.iloc[:0])
    assert found is not None
    assert min(found.seconds.values()) >= 0


def test_a_run_that_never_started_has_no_time(tmp_path: Path) -> None:
    _, steps, hardware = resumed_run(tmp_path)
    planned = fake_run(tmp_path / "sweep" / "planned", end="planned")
    assert job_time(planned.path, steps, hardware) is None
    assert JobTime(dict.fromkeys(CLASSES, 0.0), 1, True).goodput == 0


def test_queue_time_prints_as_that_of_the_cost_of_the_runs(tmp_path: Path) -> None:
    """Times since 1970 differ by 2.85500002 s, and the two times of day by 2.855 s."""
    run, steps, hardware = resumed_run(tmp_path)
    accounted(run, [(57.145, 60, 245, 2)])
    found, usage = job_time(run.path, steps, hardware), gpu_hours.read(run)
    assert found is not None
    assert usage is not None
    assert usage.queue_wait_s is not None
    assert found.seconds["queue"] == usage.queue_wait_s
