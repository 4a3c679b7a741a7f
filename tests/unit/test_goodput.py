"""Every second of a job counts once, in the class where it belongs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.losses.goodput import CLASSES, Interval, JobTime, account, job_time
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run

instants = st.floats(-100, 200)
intervals = st.lists(st.builds(Interval, instants, instants, st.sampled_from(CLASSES)), max_size=12)
START = datetime(2026, 1, 2, 3, 0, tzinfo=UTC).timestamp()


@given(st.floats(0, 50), st.floats(0, 100), intervals)
def test_every_second_counts_once(start: float, length: float, found: list[Interval]) -> None:
    seconds = account(start, start + length, found)
    assert sum(seconds.values()) == pytest.approx(length, abs=1e-9)
    assert min(seconds.values()) >= 0


def test_of_intervals_that_overlap_the_earlier_counts_and_gaps_are_other() -> None:
    seconds = account(
        0, 10, [Interval(1, 5, "queue"), Interval(3, 7, "training"), Interval(8, 99, "evaluation")]
    )
    assert {name: s for name, s in seconds.items() if s} == {
        "queue": 4,
        "training": 2,
        "evaluation": 2,
        "other": 2,
    }


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
    assert found.device_seconds["queue"] == 0


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
