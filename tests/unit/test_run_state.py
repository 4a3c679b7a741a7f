"""The state of a run, from its files alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli.follow import change_line
from jobs.cli.tables import state_note
from jobs.core import attempt as attempts
from jobs.core import journal, processes
from jobs.status.run_state import read_runs, read_state
from tests.support.fake_runs import fake_sweep
from tests.support.jobs import CODE, FakeScheduler, submit, sweep_plan


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A submitted run that no job has taken up."""
    submit(sweep_plan("a"), FakeScheduler(), tmp_path)
    return RunDir(tmp_path / "demo" / "a")


def claim(run: RunDir, number: int = 0, *, code: str = CODE, **process: Any) -> None:
    me = processes.current_process().as_dict() | process
    assert journal.claim(run, number, process=me, job_id=None, code_hash=code) is not None


def outcome(run: RunDir, cause: str, attempt: int = 0, retryable: bool = True) -> None:
    path = run.done if cause == "finished" else run.failed
    value = {"cause": cause, "attempt": attempt, "message": "why", "ended": "", "retryable": retryable}
    write_json(path, value)


DEAD = {"start_ticks": -1}


def test_queued(run: RunDir) -> None:
    found = read_state(run)
    assert (found.state, found.claimed, found.job_id, found.attempts) == ("queued", False, "elsewhere:1", 0)
    assert found.cluster == "local"


def test_submitting(run: RunDir) -> None:
    journal.entry(run, 0).path("receipt").unlink()
    assert read_state(run).state == "submitting"


def test_planned(run: RunDir) -> None:
    for path in run.submissions.iterdir():
        path.unlink()
    found = read_state(run)
    assert (found.state, found.cluster, bool(found.config_key)) == ("planned", "local", True)


def test_a_waiting_job_that_died_is_lost(run: RunDir) -> None:
    me = processes.current_process().as_dict()
    journal.write_holder(run, 0, me)
    assert read_state(run).state == "queued"
    journal.write_holder(run, 0, me | DEAD)
    found = read_state(run)
    assert (found.state, found.retryable, found.claimed) == ("lost", True, False)


def test_running_with_its_progress(run: RunDir) -> None:
    claim(run)
    progress = {
        "attempt": 0,
        "step": 5,
        "steps": 9,
        "samples_per_s": 2.0,
        "loss": 1.5,
        "eta_s": 4.0,
        "updated": 1.0,
    }
    write_json(run.progress, progress)
    found = read_state(run)
    assert (found.state, found.step, found.steps, found.eta_s, found.attempts) == ("running", 5, 9, 4.0, 1)
    assert not found.emulated


def test_an_emulated_run_is_marked_in_every_view(run: RunDir) -> None:
    claim(run)
    write_json(run.progress, {"attempt": 0, "step": 5, "steps": 9, "emulated": True})
    found = read_state(run)
    assert found.as_json()["emulated"] is True
    assert state_note(found) == "emulated"
    assert change_line(found).endswith("step 5/9  emulated")
    assert state_note(replace(found, state="done", stale=True)) == "emulated, made by older code"


def test_progress_of_an_earlier_attempt_is_not_shown(run: RunDir) -> None:
    claim(run)
    write_json(run.progress, {"attempt": 7, "step": 5})
    assert read_state(run).step is None


def test_a_job_that_ended_unrecorded_is_lost(run: RunDir) -> None:
    claim(run, **DEAD)
    found = read_state(run)
    assert (found.state, found.cause, found.retryable, found.claimed) == ("lost", "lost", True, True)


@pytest.mark.parametrize(
    ("error", "message"),
    [(errno.EDQUOT, "the disk quota is used up"), (errno.ENOSPC, "the disk is full")],
)
def test_an_end_on_a_full_disk_is_known_by_the_name_of_a_file(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, error: int, message: str
) -> None:
    claim(run, **DEAD)
    run.attempt(0).exits.mkdir(parents=True)

    def full(*arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(attempts, "write_json", full)
        attempts.close_attempt(run, run.attempt(0), {0: 1}, external_cause="killed")
    found = read_state(run)
    assert (found.state, found.cause, found.message) == ("failed", "killed", f"not recorded: {message}")


def test_a_restarted_machine_has_lost_its_jobs(run: RunDir) -> None:
    claim(run, boot="another")
    assert read_state(run).state == "lost"


def test_a_job_that_ended_unrecorded_after_its_last_step_is_done(run: RunDir) -> None:
    claim(run, **DEAD)
    write_json(run.metrics, {"status": "completed", "attempt": 0})
    assert read_state(run).state == "done"
    write_json(run.metrics, {"status": "completed", "attempt": 1})
    assert read_state(run).state == "lost"


def test_a_job_on_another_host_that_has_long_been_silent_is_not_taken_for_lost(run: RunDir) -> None:
    claim(run, host="far away")
    found = read_state(run)
    assert (found.state, found.silent, found.message) == ("running", False, None)
    os.utime(run.submissions, (1.0, time.time() - 1800))
    found = read_state(run)
    assert (found.state, found.silent, found.retryable) == ("running", True, False)
    assert found.message == "silent for 30 min"
    write_json(run.progress, {"attempt": 0, "updated": time.time()})
    assert read_state(run).silent is False


def by_hand(run: RunDir) -> None:
    """Turn a submitted run into one that was started by hand: nothing says which process runs it."""
    for path in run.submissions.iterdir():
        path.unlink()
    run.submissions.rmdir()
    run.attempt(0).path.mkdir(parents=True)


def test_a_run_by_hand_is_running_until_it_has_long_been_silent(run: RunDir) -> None:
    assert read_state(run).journaled
    by_hand(run)
    found = read_state(run)
    assert (found.state, found.journaled, found.attempt, found.attempts) == ("running", False, 0, 1)
    write_json(run.progress, {"attempt": 0, "step": 3, "updated": time.time() - 1800, "eta_s": 5.0})
    assert read_state(run).eta_s == 5.0, "its folder is fresh"
    os.utime(run.attempt(0).path, (1.0, 1.0))
    found = read_state(run)
    assert (found.state, found.retryable, found.step, found.eta_s) == ("lost", False, 3, None)
    assert found.message == "silent for 30 min"


def test_a_run_by_hand_started_again_has_a_new_state(run: RunDir) -> None:
    by_hand(run)
    outcome(run, "crashed", 0)
    assert read_state(run).state == "failed"
    run.attempt(1).path.mkdir()
    assert read_state(run).state == "running"


def test_a_finished_run_by_hand_stays_done_after_a_start_that_failed(run: RunDir) -> None:
    by_hand(run)
    outcome(run, "finished", 0)
    run.attempt(1).path.mkdir()
    found = read_state(run)
    assert (found.state, found.attempt) == ("done", 0)


def test_failed_then_retried(run: RunDir) -> None:
    claim(run, **DEAD)
    outcome(run, "crashed", 0)
    found = read_state(run)
    assert (found.state, found.cause, found.message, found.retryable) == ("failed", "crashed", "why", True)
    submit(sweep_plan("a"), FakeScheduler(), run.path.parent.parent)
    assert read_state(run).state == "queued"
    claim(run, 1)
    found = read_state(run)
    assert (found.state, found.attempt, found.attempts) == ("running", 1, 2), "FAILED is of attempt 0"


def test_cancelled_before_it_started(run: RunDir) -> None:
    journal.revoke(run, 0, "cancelled", "by the user")
    found = read_state(run)
    assert (found.state, found.cause, found.retryable, found.submission) == (
        "failed",
        "cancelled",
        True,
        None,
    )


def test_revoked_after_a_failure_is_that_failure(run: RunDir) -> None:
    claim(run, **DEAD)
    outcome(run, "refused", retryable=False)
    journal.write_intent(run, {"cluster": "local"})
    journal.revoke(run, 1, "lost", "never showed up")
    found = read_state(run)
    assert (found.state, found.cause, found.retryable, found.submission) == ("failed", "refused", False, 0)


def test_done_by_other_code_is_stale(run: RunDir) -> None:
    claim(run, **DEAD, code="new")
    outcome(run, "finished", retryable=False)
    assert read_state(run, code_hash="new").stale is False
    assert read_state(run, code_hash="newer").stale is True, "what counts is the code it ran with"
    assert read_state(run).stale is False


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"attempt": "x"}', "\xff"])
@pytest.mark.parametrize("part", ["claim", "FAILED"])
def test_a_corrupt_file_is_a_state_that_names_it(run: RunDir, part: str, content: str) -> None:
    claim(run)
    path = {"claim": journal.entry(run, 0).path("claim"), "FAILED": run.failed}[part]
    path.write_text(content, encoding="latin-1")
    found = read_state(run)
    if (part, content) == ("FAILED", '{"attempt": "x"}'):
        assert found.state == "running", "somebody else's outcome"
    else:
        assert found.state == "corrupt"
        assert str(run.path) in str(found.message)
        assert found.config_key == read_json(run.run_json)["config_key"], "its plan still finds it"


def test_a_run_that_was_moved_away_meanwhile(run: RunDir) -> None:
    run.path.rename(run.path.with_name("elsewhere"))
    found = read_state(run)
    assert (found.state, found.message) == ("corrupt", f"{run.path} does not exist")


def test_a_corrupt_plan_has_no_key(run: RunDir) -> None:
    journal.entry(run, 0).path("intent").write_text("{")
    run.run_json.write_text('{"config_key": 5}')
    assert (read_state(run).state, read_state(run).config_key) == ("corrupt", None)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"attempt": "x"}', '{"attempt": 0, "loss": "x"}'])
def test_corrupt_progress_is_no_more_than_missing(run: RunDir, content: str) -> None:
    claim(run)
    run.progress.write_text(content)
    assert (read_state(run).state, read_state(run).loss) == ("running", None)


def test_a_corrupt_metrics_file_does_not_matter(run: RunDir) -> None:
    claim(run, **DEAD)
    run.metrics.write_text("{")
    assert read_state(run).state == "lost"


def test_runs_copied_without_their_journal(tmp_path: Path) -> None:
    fake_sweep(tmp_path, nodes=(2, 16), repeats=1)
    found = read_runs(tmp_path, "default", code_hash="another")
    assert [state.state for state in found] == ["done", "done"]
    assert [state.attempt for state in found] == [0, 0]
    assert all(state.stale for state in found)


def test_all_sweeps_or_one(tmp_path: Path) -> None:
    fake_sweep(tmp_path, "one", nodes=(1,), repeats=1)
    fake_sweep(tmp_path, "two", nodes=(1,), repeats=1)
    (tmp_path / "one" / "report").mkdir()
    (tmp_path / "stray.txt").touch()
    assert [state.sweep for state in read_runs(tmp_path)] == ["one", "two"]
    assert [state.sweep for state in read_runs(tmp_path, "two")] == ["two"]
    assert read_runs(tmp_path / "nowhere") == []


def test_reading_states_needs_nothing_heavy() -> None:
    heavy = {"pydantic", "torch", "yaml", "submitit", "numpy"}
    modules = "jobs.status.run_state, jobs.schedulers.local.supervisor, jobs.node.agent"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_liveness_is_of_that_process_and_not_of_its_pid() -> None:
    me = processes.current_process().as_dict()
    assert processes.is_alive(me) is True
    assert processes.is_alive(me | {"start_ticks": me["start_ticks"] - 1}) is False, "a recycled pid"
    assert processes.is_alive(me | {"host": "elsewhere"}) is None
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.is_alive(me | {"pid": pid, "start_ticks": 0}) is False
    os.waitpid(pid, 0)
