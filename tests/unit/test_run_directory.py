"""Paths of a run directory, and its attempts by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir, checkpoint_steps


def test_attempts_are_counted_by_folder(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "default" / "n2-r0")
    assert (run.name, run.sweep, run.attempts()) == ("n2-r0", "default", [])
    for name in ("000", "001", "010", ".tmp"):
        (run.path / "attempts" / name).mkdir(parents=True)
    assert [attempt.number for attempt in run.attempts()] == [0, 1, 10]
    attempt = run.attempt(1)
    assert attempt.path == run.path / "attempts" / "001"
    assert attempt.steps(7).name == "steps-00007.jsonl"
    assert attempt.node_log(1).name == "node-01.log"


def test_an_older_attempt_is_superseded_by_the_newest(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for number in (0, 2):
        run.attempt(number).path.mkdir(parents=True)
    assert run.attempt(0).superseded() == "attempt 2 of this run has begun"
    assert run.attempt(2).superseded() is None


@pytest.mark.parametrize("successor", [True, False])
def test_an_attempt_notices_that_its_run_directory_was_replaced(tmp_path: Path, successor: bool) -> None:
    run = RunDir(tmp_path / "run")
    assert run.identified().directory_id is None, "an attempt by older code"
    attempt = run.identified(create=True).attempt(0)
    attempt.path.mkdir()
    assert run.identified().directory_id == run.identified(create=True).directory_id == attempt.directory_id
    assert (attempt.is_replaced(), attempt.superseded()) == (False, None)
    run.path.rename(tmp_path / "trash")
    if successor:
        run.identified(create=True).attempt(0).path.mkdir()
    assert attempt.is_replaced()
    assert attempt.superseded() == "the run directory was moved away or deleted"
    assert RunDir(tmp_path / "run").attempt(0).superseded() is None


def test_committed_checkpoints_are_listed_newest_first(tmp_path: Path) -> None:
    assert checkpoint_steps(tmp_path / "absent") == []
    for name in (
        "step-00000010",
        "step-00000200",
        "step-00000300.a001.tmp",
        "step-00000010.damaged",
        "owner.json",
    ):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [200, 10]
