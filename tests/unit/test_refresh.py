"""States of runs corrected by the states of their jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.cli import follow
from jobs.cli.tables import state_note
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.node.torchrun import CANCELLED_BY_SCHEDULER
from jobs.schedulers.interface import Job
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.outcome import SILENT_AFTER_S
from jobs.status.refresh import ACCOUNTING_LAG_S, refresh, refresh_all, with_canceller
from jobs.status.run_state import RunState, read_runs, read_state
from jobs.submission.decide import resume_actions
from tests.support.commands import Commands, record, sacct, squeue
from tests.support.jobs import CODE, FakeSlurm, wait_until
from tests.support.states import on_cluster, on_slurm, summary

OUTCOME = {"attempt": 0, "cause": "deadline", "message": "left", "retryable": True}
LEFT = "requeued after deadline: left"
PENDING = Job("pending", waits_for="QOS", start_expected=9.0)
RUNNING, UNLISTED = Job("running"), Job("running", certain=False)
SET_UP, SET_UP_UNLISTED = Job("running", started=1.0), Job("running", started=1.0, certain=False)
ENDED, NOT_FOUND = Job("ended", "m"), Job("not_found")
CANCELLED, NODE_FAILED, OOM = (Job("ended", "m", cause) for cause in ("cancelled", "lost", "out_of_memory"))
BY_ALICE = "by `disttrain cancel` of alice on login1"


def corrected(run: RunDir, job: Job) -> RunState:
    cluster = FakeSlurm()
    cluster.job = job
    return refresh([read_state(run)], cluster)[0]


def age(run: RunDir, seconds: float) -> RunDir:
    """Let its newest record be that old."""
    os.utime(run.submissions, (time.time() - seconds,) * 2)
    return run


def claim_again(run: RunDir) -> None:
    process = current_process().as_dict() | {"host": "node-1"}
    journal.claim(run, 0, process=process, job_id="7", code_hash=CODE, restart=1)


def started(root: Path) -> RunDir:
    return on_slurm(root, claimed=True)


def lagging(root: Path) -> RunDir:
    return age(started(root), ACCOUNTING_LAG_S + 60)


def silent(root: Path) -> RunDir:
    return age(started(root), SILENT_AFTER_S + 60)


def cancelled(root: Path) -> RunDir:
    journal.write_cancel(run := started(root), 0, "alice", "login1")
    return run


def requeued(root: Path) -> RunDir:
    """A run whose first start has ended for a requeue."""
    write_json((run := started(root)).failed, OUTCOME | {"next": "requeue", "ended": journal.utc_now()})
    return run


def without_end(root: Path) -> RunDir:
    write_json((run := started(root)).failed, OUTCOME | {"next": "requeue"})
    return run


@pytest.mark.parametrize(
    ("prepare", "job", "expected", "message"),
    [
        (on_slurm, PENDING, "queued", None),
        (on_slurm, SET_UP, "starting before_agents", None),
        (on_slurm, SET_UP_UNLISTED, "queued", None),
        (on_slurm, RUNNING, "queued", None),
        (on_slurm, ENDED, "failed launch_failed retryable", "m"),
        (on_slurm, CANCELLED, "failed cancelled retryable", "m"),
        (on_slurm, NOT_FOUND, "queued", None),
        (started, SET_UP, "running claimed", None),
        (started, PENDING, "queued claimed", "its job was requeued"),
        (started, ENDED, "lost claimed retryable", "m"),
        (started, NODE_FAILED, "lost claimed retryable", "m"),
        (started, OOM, "failed out_of_memory claimed", "m"),
        (started, NOT_FOUND, "running claimed", None),
        (lagging, NOT_FOUND, "lost claimed retryable", "the scheduler does not list its job any more"),
        (lagging, UNLISTED, "running claimed", None),
        (silent, RUNNING, "running claimed", None),
        (silent, UNLISTED, "running claimed silent", "silent for 11 min"),
        (cancelled, RUNNING, "running claimed", None),
        (cancelled, NOT_FOUND, "failed cancelled claimed retryable", BY_ALICE),
        (cancelled, OOM, "failed cancelled claimed retryable", BY_ALICE),
        (requeued, SET_UP, "queued claimed", LEFT),  # the start before, which is ending
        (requeued, Job("running", started=9e9), "starting claimed before_agents", LEFT),
        (without_end, Job("running", started=9e9), "queued claimed", LEFT),
        (requeued, PENDING, "queued claimed", LEFT),
        (requeued, CANCELLED, "failed cancelled claimed retryable", f"m ({LEFT})"),
        (requeued, NODE_FAILED, "failed lost claimed retryable", f"m ({LEFT})"),
    ],
)
def test_a_job_corrects_the_state_of_its_run(
    tmp_path: Path, prepare: Callable[[Path], RunDir], job: Job, expected: str, message: str | None
) -> None:
    state = corrected(prepare(tmp_path), job)
    assert (summary(state), state.message) == (expected, message)
    assert (state.waits_for, state.start_expected) == (("QOS", 9.0) if job is PENDING else (None, None))


def test_what_was_recorded_meanwhile_takes_precedence(tmp_path: Path) -> None:
    run, cluster = started(tmp_path), FakeSlurm("ended", message="m", cause="cancelled")
    before = read_state(run)
    claim_again(run)
    assert refresh([before], cluster)[0] == (now := read_state(run)), "the query was about the start before"
    write_json(run.failed, OUTCOME | {"attempt": 1})
    assert summary(refresh([now], cluster)[0]) == "failed deadline claimed retryable"


def test_a_lost_run_lives_where_its_own_scheduler_lists_its_job(tmp_path: Path) -> None:
    lost = RunState(RunDir(tmp_path), "lost", cluster="slurm", job_id="7", cause="lost", retryable=True)
    assert summary(refresh([lost], FakeSlurm("running"))[0]) == "running"
    assert refresh([lost], FakeSlurm("ended")) == [lost]
    other = replace(lost, cluster="local")
    assert refresh([other], FakeSlurm("running")) == [other]


def test_an_end_that_could_not_be_recorded_is_read_from_the_log(tmp_path: Path) -> None:
    run = started(tmp_path)
    write_text(run.attempt(0).node_log(0), "now agent: killed: not recorded: [Errno 13] Permission denied\n")
    state = corrected(run, ENDED)
    assert summary(state) == "failed killed claimed retryable"
    assert "Permission denied" in (state.message or "")


@pytest.mark.parametrize(
    ("disk", "problem"),
    [
        (SimpleNamespace(f_flag=0, f_bavail=1, f_frsize=4096), "the disk is full"),
        (SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1, f_frsize=1 << 30), "the file system is read-only"),
        (SimpleNamespace(f_flag=0, f_bavail=1, f_frsize=1 << 30), None),
    ],
)
def test_a_sudden_end_names_a_disk_that_takes_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: object, problem: str | None
) -> None:
    run = started(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert corrected(run, ENDED).message == (f"m; {problem}: {run.path}" if problem else "m")
    assert corrected(run, CANCELLED).message == "m"


def test_a_hidden_job_of_another_user_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, hidden = lagging(tmp_path), Job("not_found", certain=False)
    assert corrected(run, hidden).state == "lost"
    monkeypatch.setattr(os, "getuid", lambda: os.stat(run.path).st_uid + 1)
    assert corrected(run, hidden).state == "running"
    assert corrected(run, NOT_FOUND).state == "lost", "the scheduler lists jobs of all users"
    journal.entry(run, 0).path("intent").unlink()
    assert journal.is_own_submission(run, 0), "not known"


def test_a_found_receipt_is_written_only_on_request(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    journal.entry(run, 0).path("receipt").unlink()
    cluster = FakeSlurm("pending", waits_for="Resources")
    assert refresh([read_state(run)], cluster, receipts=True)[0].state == "submitting", "no job is found"
    cluster.found = "7"
    (state,) = refresh([read_state(run)], cluster)
    assert (state.state, state.job_id, state.waits_for) == ("queued", "7", "Resources")
    assert read_state(run).state == "submitting"
    refresh([read_state(run)], cluster, receipts=True)
    assert (read_state(run).state, read_state(run).job_id) == ("queued", "7")


def test_a_run_on_another_cluster_keeps_its_state(tmp_path: Path) -> None:
    for name, cluster in (("here", "here"), ("there", "there"), ("unknown", "there")):
        on_cluster(tmp_path, f"s/{name}", cluster)
    journal.entry(RunDir(tmp_path / "s/unknown"), 0).path("receipt").unlink()
    cluster = FakeSlurm("ended", message="m", cause="cancelled")
    cluster.is_cluster, cluster.found = "here", "9"
    warnings: list[str] = []
    states = refresh(read_runs(tmp_path), cluster, receipts=True, warn=warnings.append)
    assert {s.name: (s.state, s.message) for s in states} == {
        "here": ("failed", "m"),
        "there": ("queued", "its job is on cluster there"),
        "unknown": ("submitting", "its job is on cluster there"),
    }
    assert ["on cluster there are from" in line for line in warnings] == [True]
    assert [action.kind for action in resume_actions(states, CODE)] == ["retry", "in_progress", "in_progress"]


def test_runs_that_have_ended_need_no_query(commands: Commands, tmp_path: Path) -> None:
    write_json(started(tmp_path).failed, OUTCOME)
    squeue(commands)
    assert [state.state for state in refresh_all(read_runs(tmp_path))] == ["failed"]
    assert not (commands.folder / "calls").exists()


def test_the_name_of_the_cluster_is_asked_for_once(commands: Commands, tmp_path: Path) -> None:
    for number in range(2):
        on_cluster(tmp_path, f"s/n{number}", "here")
    commands.add("scontrol", "exit 1")
    squeue(commands, "7|PENDING|N/A|Priority")
    assert len(refresh(read_runs(tmp_path), SlurmScheduler())) == 2
    assert commands.calls().count("scontrol show config") == 1, "also without an answer"


def test_a_controller_that_is_down_is_one_warning_and_changes_no_state(
    commands: Commands, tmp_path: Path
) -> None:
    for number in range(2):
        on_slurm(tmp_path, f"s/n{number}", f"{number}", claimed=number == 1)
    commands.add("squeue", "exit 1")
    warnings: list[str] = []
    assert [state.state for state in refresh_all(read_runs(tmp_path), warnings.append)] == [
        "queued",
        "running",
    ]
    assert ["(squeue failed without a message)" in line for line in warnings] == [True]


def test_the_note_says_why_a_job_waits_and_until_when(tmp_path: Path) -> None:
    soon = replace(PENDING, start_expected=time.time() + 725)
    assert "waits for QOS, expected to start in 12:0" in state_note(
        corrected(on_slurm(tmp_path, "s/b"), soon)
    )
    assert state_note(corrected(started(tmp_path), PENDING)) == "waits for QOS; its job was requeued"


def test_accounting_names_the_user_behind_a_recorded_cancel(commands: Commands, tmp_path: Path) -> None:
    run = started(tmp_path)
    write_json(run.failed, OUTCOME | {"cause": "cancelled", "message": CANCELLED_BY_SCHEDULER})
    squeue(commands)
    for script, message in (
        (f"echo '{record('7', 'CANCELLED by 0')}'", "its job was cancelled by root"),
        (f"echo '{record('7', 'PREEMPTED')}'", "its job was pre-empted, and not requeued"),
        ("exit 1", CANCELLED_BY_SCHEDULER),
    ):
        commands.add("sacct", script)
        assert with_canceller(read_state(run)).message == message
    (commands.folder / "calls").unlink()
    journal.write_cancel(run, 0, "alice", "login1")
    assert with_canceller(read_state(run)).message == "by `disttrain cancel` of alice on login1"
    assert not (commands.folder / "calls").exists()


def test_polled_runs_are_corrected_until_their_files_change(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = threading.enumerate()
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 0.0)
    run = started(tmp_path)
    write_json(run.progress, {"attempt": 0, "eta_s": 5.0})
    commands.add("squeue", "exit 1")
    polled = follow.PolledRuns(lambda: [read_state(run)])
    wait_until(lambda: polled.read() and "does not answer" in polled.notice)
    assert (polled.read()[0].state, polled.read()[0].eta_s) == ("running", 5.0)
    squeue(commands, "7|PENDING|N/A|BeginTime")
    wait_until(lambda: polled.read()[0].state == "queued")
    assert (polled.notice, polled.read()[0].eta_s) == ("", None)
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 3600.0)
    for thread in threading.enumerate():
        if thread not in others:
            thread.join()
    claim_again(run)
    assert polled.read()[0].state == "running", "the correction was of the start before"
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 0.0)
    squeue(commands)
    sacct(commands, record("7", "CANCELLED by 0"))
    wait_until(lambda: polled.read()[0].cause == "cancelled")
