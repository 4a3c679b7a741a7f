"""The state of a run, from its files alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import journal, processes
from jobs.status.run_folders import natural_key
from jobs.status.run_state import read_runs, read_state
from tests.support.fake_runs import fake_sweep
from tests.support.jobs import CODE, FakeScheduler, submit, sweep_plan
from tests.support.states import summary

DEAD: dict[str, Any] = {"start_ticks": -1}
ME = processes.current_process().as_dict()
PROGRESS = {"attempt": 0, "step": 5, "samples_per_s": 2.0, "eta_s": 4.0}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A submitted run that no job has claimed."""
    submit(sweep_plan("a"), FakeScheduler(), tmp_path)
    return RunDir(tmp_path / "demo" / "a")


def claim(run: RunDir, number: int = 0, code: str = CODE, **process: Any) -> None:
    attempt = journal.claim(run, number, process=ME | process, job_id=None, code_hash=code)
    assert attempt is not None


def outcome(run: RunDir, cause: str, attempt: int = 0, **fields: Any) -> None:
    record = {"cause": cause, "attempt": attempt, "message": "why", "ended": "", "retryable": True}
    write_json(run.done if cause == "finished" else run.failed, record | fields)


def shows(run: RunDir, expected: str, **fields: Any) -> None:
    """The state of the run has this summary and these fields."""
    state = read_state(run)
    assert summary(state) == expected
    assert {name: getattr(state, name) for name in fields} == fields


def when_listed(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let another process act once, right after the journal was listed."""
    listdir, acts = os.listdir, [act]

    def listed(path: Any) -> list[str]:
        names = listdir(path)
        if str(path).endswith("submissions") and acts:
            acts.pop()()
        return names

    monkeypatch.setattr(os, "listdir", listed)


def test_before_a_job_claims_it(run: RunDir) -> None:
    shows(run, "queued", job_id="elsewhere:1", attempts=0, cluster="local", journaled=True)
    journal.write_holder(run, 0, ME)
    shows(run, "queued")
    journal.write_holder(run, 0, ME | DEAD)
    shows(run, "lost retryable")
    for part, state in (("holder", "queued"), ("receipt", "submitting"), ("intent", "planned")):
        journal.entry(run, 0).path(part).unlink()
        shows(run, state)
    assert read_state(run).config_key == read_json(run.run_json)["config_key"]


def test_a_holder_that_claimed_and_ended_since_the_listing_is_not_lost_in_the_queue(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write_holder(run, 0, ME | DEAD)

    def start_and_end() -> None:
        claim(run, **DEAD)
        outcome(run, "crashed")

    when_listed(monkeypatch, start_and_end)
    shows(run, "failed crashed claimed retryable")


def test_an_outcome_written_since_the_listing_counts(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(run, **DEAD)
    when_listed(monkeypatch, lambda: outcome(run, "crashed"))
    shows(run, "failed crashed claimed retryable")


def test_running_with_its_progress(run: RunDir) -> None:
    claim(run)
    write_json(run.progress, PROGRESS | {"mean_samples_per_s": 3.0, "emulated": True})
    shows(run, "running claimed emulated", step=5, eta_s=4.0, attempts=1, samples_per_s=3.0)
    write_json(run.progress, PROGRESS)
    shows(run, "running claimed", samples_per_s=None, live_samples_per_s=2.0)
    outcome(run, "crashed")
    shows(run, "failed crashed claimed retryable", step=5, eta_s=None, live_samples_per_s=None)


@pytest.mark.parametrize("content", ["", "[]", '{"attempt": 7, "loss": 1}', '{"attempt": 0, "loss": "x"}'])
def test_progress_that_is_damaged_or_of_another_attempt_is_not_shown(run: RunDir, content: str) -> None:
    claim(run)
    run.progress.write_text(content)
    shows(run, "running claimed", loss=None)


@pytest.mark.parametrize(
    ("metrics", "state"),
    [
        ('{"status": "completed", "attempt": 0}', "done finished claimed"),
        ('{"status": "completed", "attempt": 1}', "lost claimed retryable"),
        ('{"status": "running", "attempt": 0}', "lost claimed retryable"),
        ("{", "lost claimed retryable"),
    ],
)
def test_a_job_that_ended_unrecorded_is_lost_unless_it_had_finished(
    run: RunDir, metrics: str, state: str
) -> None:
    claim(run, boot="before the machine was restarted")
    run.metrics.write_text(metrics)
    shows(run, state)


def test_an_end_that_could_not_be_recorded_is_read_from_the_log_or_the_name_of_a_file(run: RunDir) -> None:
    claim(run, **DEAD)
    killed, attempt = "failed killed claimed retryable", run.attempt(0)
    write_text(attempt.exits / f"unrecorded.killed.{errno.EDQUOT}", "")
    shows(run, killed, message="not recorded: the disk quota is used up")
    lines = [f"now agent: {cause}: not recorded: {cause}\n" for cause in ("crashed", "killed", "unheard_of")]
    write_text(attempt.node_log(0), "".join(lines))
    shows(run, killed, message="not recorded: killed")


def test_a_job_on_another_host_that_has_long_been_silent_is_not_taken_for_lost(run: RunDir) -> None:
    claim(run, host="far away")
    shows(run, "running claimed", message=None)
    for path in (run.attempt(0).checkpoint_warning, run.attempt(0).hang_warning):
        write_json(path, {"message": path.stem})
        assert str(read_state(run).message).endswith(path.stem), "the newest is the worse one"
    os.utime(run.submissions, (1.0, time.time() - 1800))
    shows(run, "running claimed silent", message="silent for 30 min")
    write_json(run.progress, {"attempt": 0, "updated": time.time()})
    shows(run, "running claimed")
    os.utime(run.submissions)
    write_json(run.progress, {"attempt": 0, "updated": 1.0})
    shows(run, "running claimed")


def by_hand(run: RunDir) -> None:
    """Turn a submitted run into one started by hand, of which no file names the process."""
    for path in run.submissions.iterdir():
        path.unlink()
    run.submissions.rmdir()
    run.attempt(0).path.mkdir(parents=True)


def test_a_run_by_hand_is_running_until_it_has_long_been_silent(run: RunDir) -> None:
    by_hand(run)
    shows(run, "running", journaled=False, attempt=0, attempts=1)
    write_json(run.progress, PROGRESS | {"updated": time.time() - 1800})
    shows(run, "running", eta_s=4.0)
    os.utime(run.attempt(0).path, (1.0, 1.0))
    shows(run, "lost", step=5, eta_s=None, message="silent for 30 min")


def test_a_start_by_hand_replaces_a_failure_and_not_a_completed_run(run: RunDir) -> None:
    by_hand(run)
    outcome(run, "crashed")
    shows(run, "failed crashed retryable")
    run.attempt(1).path.mkdir()
    shows(run, "running", attempt=1)
    outcome(run, "finished")
    shows(run, "done finished retryable", attempt=0)


def test_failed_then_submitted_again(run: RunDir) -> None:
    claim(run, **DEAD)
    outcome(run, "crashed")
    shows(run, "failed crashed claimed retryable", message="why", attempts_before_code=0)
    submit(sweep_plan("a"), FakeScheduler(), run.path.parent.parent)
    shows(run, "queued", attempts=1)
    claim(run, 1)
    shows(run, "running claimed", attempt=1, attempts=2, submission=1)
    outcome(run, "crashed", 1)
    shows(run, "failed crashed claimed retryable", attempts=2, attempts_before_code=1)


def test_submissions_that_were_revoked(run: RunDir) -> None:
    journal.revoke(run, 0, "launch_failed", "no such partition")
    shows(run, "planned", message="no such partition", submission=None)
    journal.write_intent(run, {})
    claim(run, 1, **DEAD)
    outcome(run, "refused")
    journal.revoke(run, 1, "lost", "submitted again", starts=1)
    journal.write_intent(run, {})
    journal.revoke(run, 2, "launch_failed", "no such partition")
    shows(run, "failed refused claimed retryable", message="why", submission=1)


@pytest.mark.parametrize("starts", [0, 1])
def test_a_run_that_was_cancelled_while_it_waited(run: RunDir, starts: int) -> None:
    if starts:
        claim(run, **DEAD)
        outcome(run, "deadline", next="requeue")
        shows(run, "queued claimed", starts=1, message="requeued after deadline: why")
    journal.revoke(run, 0, "cancelled", "by the user", starts=starts)
    expected = "failed cancelled claimed retryable" if starts else "failed cancelled retryable"
    shows(run, expected, message="by the user")


def test_done_by_other_code_is_stale(run: RunDir) -> None:
    claim(run, code="new", **DEAD)
    outcome(run, "crashed")
    assert not read_state(run, code_hash="newer").stale
    outcome(run, "finished")
    stale = [read_state(run, code_hash=code).stale for code in ("new", CODE, None)]
    assert stale == [False, True, False], "the code of the attempt counts, not that of the submission"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"attempt": "x"}', "\xff"])
@pytest.mark.parametrize("part", ["claim", "FAILED"])
def test_a_damaged_record_is_a_state_that_names_it(run: RunDir, part: str, content: str) -> None:
    claim(run)
    path = journal.entry(run, 0).path("claim") if part == "claim" else run.failed
    path.write_text(content, encoding="latin-1")
    if (part, content) == ("FAILED", '{"attempt": "x"}'):  # of another attempt
        shows(run, "running claimed")
    else:
        shows(run, "corrupt", config_key=read_json(run.run_json)["config_key"])
        assert str(run.path) in str(read_state(run).message)


def test_a_run_without_readable_records(run: RunDir) -> None:
    journal.entry(run, 0).path("intent").write_text("{")
    run.run_json.write_text('{"config_key": 5}')
    shows(run, "corrupt", config_key=None)
    run.path.rename(run.path.with_name("elsewhere"))
    shows(run, "corrupt", message=f"{run.path} does not exist")


def test_runs_are_listed_by_sweep_in_natural_order(tmp_path: Path) -> None:
    for sweep, nodes in (("one", (16, 2)), ("two", (1,))):
        fake_sweep(tmp_path, sweep, nodes=nodes, repeats=1)
    (tmp_path / "one" / "report").mkdir()
    (tmp_path / "stray.txt").touch()
    states = read_runs(tmp_path, code_hash="another")
    assert [state.label for state in states] == ["one/n2x1-r0", "one/n16x1-r0", "two/n1x1-r0"]
    assert {summary(state) for state in states} == {"done finished stale"}, "copied without their journal"
    assert [state.sweep for state in read_runs(tmp_path, "two")] == ["two"]
    assert read_runs(tmp_path / "nowhere") == []
    names = ["n1-r0", "n2-r9", "n2-r10", "n16-r0"]
    assert sorted(reversed(names), key=natural_key) == names


def test_reading_states_needs_nothing_heavy() -> None:
    heavy = {"pydantic", "torch", "yaml", "submitit", "numpy"}
    modules = "jobs.status.run_state, jobs.schedulers.local.supervisor, jobs.node.agent"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_liveness_is_of_that_process_and_not_of_its_pid() -> None:
    assert processes.is_alive(ME) is True
    assert processes.is_alive(ME | {"start_ticks": ME["start_ticks"] - 1}) is False, "a recycled pid"
    assert processes.is_alive(ME | {"host": "elsewhere"}) is None
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.is_alive(ME | {"pid": pid, "start_ticks": 0}) is False, "a zombie"
    os.waitpid(pid, 0)
