"""Paths of a run directory, and its attempts by number."""

import pytest

from disttrain.records.run_directory import RunDir, checkpoint_steps


def test_attempts_are_counted_by_folder_and_superseded_by_the_newest(tmp_path):
    run = RunDir(tmp_path / "default" / "n2-r0")
    assert (run.name, run.sweep, run.attempts()) == ("n2-r0", "default", [])
    for name in ("000", "001", "010", ".tmp"):
        (run.path / "attempts" / name).mkdir(parents=True)
    assert [attempt.number for attempt in run.attempts()] == [0, 1, 10]
    attempt = run.attempt(1)
    assert attempt.steps(7) == run.path / "attempts" / "001" / "steps-00007.jsonl"
    assert attempt.superseded() == "attempt 10 of this run has begun"
    assert [run.attempt(number).superseded() for number in (10, 11)] == [None, None]


@pytest.mark.parametrize("successor", [True, False])
def test_an_attempt_notices_that_its_run_directory_was_replaced(tmp_path, successor):
    run = RunDir(tmp_path / "run")
    assert run.identified().directory_id is None
    attempt = run.identified(create=True).attempt(0)
    attempt.path.mkdir()
    assert run.identified().directory_id == run.identified(create=True).directory_id == attempt.directory_id
    assert (attempt.is_replaced(), attempt.superseded()) == (False, None)
    run.path.rename(tmp_path / "trash")
    if successor:
        run.identified(create=True).attempt(0).path.mkdir()
    assert (attempt.is_replaced(), "moved away or deleted" in attempt.superseded()) == (True, True)
    assert run.attempt(0).superseded() is None, "an attempt without an id"


def test_committed_checkpoints_are_listed_newest_first(tmp_path):
    assert checkpoint_steps(tmp_path / "absent") == []
    names = (
        "step-00000010",
        "step-00000200",
        "step-00000300.a001.tmp",
        "step-00000400.damaged",
        "owner.json",
    )
    for name in names:
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [200, 10]
