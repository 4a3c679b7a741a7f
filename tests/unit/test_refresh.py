"""States corrected by Slurm's job states, against stand-ins for its commands."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import submit as command_line
from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.cli import follow
from jobs.cli.tables import state_note
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.schedulers.interface import Job
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status import outcome as outcomes
from jobs.status.outcome import SILENT_AFTER_S
from jobs.status.refresh import ACCOUNTING_LAG_S, refresh, refresh_all
from jobs.status.run_state import RunState, read_runs, read_state
from jobs.submission.decide import resume_actions
from tests.support.commands import Commands, record, sacct, squeue
from tests.support.jobs import CODE, FakeSlurm, wait_until
from tests.support.states import on_cluster, on_slurm

KEYS = {"config_key": "k", "run_key": "r", "code_hash": CODE}


def asked(run: RunDir) -> RunState:
    return refresh([read_state(run)], SlurmScheduler())[0]


def age(run: RunDir, seconds: float) -> None:
    """Its last sign of life was that long ago."""
    os.utime(run.submissions, (time.time() - seconds,) * 2)


def test_runs_that_have_ended_need_no_query(commands: Commands, tmp_path: Path) -> None:
    done = on_slurm(tmp_path, claimed=True)
    outcome = {
        "cause": "finished",
        "attempt": 0,
        "message": None,
        "ended": journal.utc_now(),
        "retryable": False,
    }
    write_json(done.done, outcome)
    squeue(commands)
    assert [state.state for state in refresh_all(read_runs(tmp_path))] == ["done"]
    assert not (commands.folder / "calls").exists()


def test_one_query_for_all_runs(commands: Commands, tmp_path: Path) -> None:
    for number in range(3):
        on_slurm(tmp_path, f"s/n{number}", f"7_{number}", claimed=number == 1)
    squeue(commands, "7_0|PENDING|N/A|Priority", "7_1|RUNNING|100|None", "7_2|CONFIGURING|100|None")
    states = refresh_all(read_runs(tmp_path))
    assert [state.state for state in states] == ["queued", "running", "starting"]
    assert commands.calls().count("squeue") == 1
    assert "sacct" not in commands.calls()


def test_the_cluster_is_queried_once_even_without_an_answer(commands: Commands, tmp_path: Path) -> None:
    for number in range(3):
        on_cluster(tmp_path, f"s/n{number}", "here")
    commands.add("scontrol", "exit 1")
    squeue(commands, "7|PENDING|N/A|Priority")
    assert {state.state for state in refresh(read_runs(tmp_path), SlurmScheduler())} == {"queued"}
    assert commands.calls().count("scontrol show config") == 1


def test_why_a_job_waits_and_until_when(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    squeue(commands, f"7|PENDING|{time.time() + 725:.0f}|QOSMaxJobsPerUserLimit")
    assert state_note(asked(run)).startswith("waits for QOSMaxJobsPerUserLimit, expected to start in 12:0")
    squeue(commands, "7|PENDING|N/A|Dependency")
    assert state_note(asked(run)) == "waits for Dependency"


@pytest.mark.parametrize("word", ["PENDING", "EXPEDITING"])
def test_a_run_whose_job_was_requeued_waits_again(commands: Commands, tmp_path: Path, word: str) -> None:
    run = on_slurm(tmp_path, claimed=True)
    squeue(commands, f"7|{word}|N/A|BeginTime")
    state = asked(run)
    assert (state.state, state.waits_for) == ("queued", "BeginTime")
    assert state_note(state) == "waits for BeginTime; its job was requeued"


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("by", ["squeue", "sacct"])
@pytest.mark.parametrize(
    ("word", "cause", "retryable"),
    [
        ("CANCELLED", "cancelled", True),
        ("TIMEOUT", "timeout", True),
        ("NODE_FAIL", "lost", True),
        ("OUT_OF_MEMORY", "out_of_memory", False),
        ("PREEMPTED", "preempted", True),
        ("DEADLINE", "timeout", True),
        ("BOOT_FAIL", "launch_failed", True),
        ("FAILED", None, True),
    ],
)
def test_how_a_job_ended(
    commands: Commands, tmp_path: Path, word: str, cause: str | None, retryable: bool, by: str, claimed: bool
) -> None:
    run = on_slurm(tmp_path, claimed=claimed)
    squeue(commands, *([f"7|{word}|100|None"] if by == "squeue" else []))
    sacct(
        commands,
        record("7", "REQUEUED", submitted=90),
        record("7", f"{word} by 0" if word == "CANCELLED" else word),
    )
    state = asked(run)
    cause = cause or ("lost" if claimed else "launch_failed")
    assert (state.cause, state.retryable) == (cause, retryable)
    assert state.state == ("lost" if cause == "lost" else "failed")
    assert state.displayed_state == {"cancelled": "cancelled", "lost": "lost"}.get(cause, "failed")
    assert state.message
    assert "its job" in state.message
    assert ("sacct" in commands.calls()) is (by == "sacct" or word == "CANCELLED")
    assert state.message.endswith(" by root") is (word == "CANCELLED")


def test_the_exit_code_of_a_job_that_failed_is_told(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    squeue(commands)
    sacct(commands, record("7", "FAILED", "69:0"))
    assert asked(run).message == "its job failed (exit code 69)"
    sacct(commands, record("7", "FAILED", "0:9"))
    assert asked(run).message == "its job failed (signal 9)"


def test_an_outcome_recorded_meanwhile_takes_precedence(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    before = read_state(run)
    outcome = {
        "cause": "deadline",
        "attempt": 0,
        "message": "left",
        "ended": journal.utc_now(),
        "retryable": True,
    }
    write_json(run.failed, outcome)
    (state,) = refresh([before], FakeSlurm("ended", message="its job was cancelled", cause="cancelled"))
    assert (state.state, state.cause) == ("failed", "deadline")


def test_a_run_that_waits_for_its_requeue_waits_as_long_as_its_job_does(tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    outcome = {
        "cause": "deadline",
        "attempt": 0,
        "message": "left",
        "ended": journal.utc_now(),
        "retryable": True,
    }
    write_json(run.failed, outcome | {"next": "requeue"})
    before = read_state(run)
    assert (before.state, before.message) == ("queued", "requeued after deadline: left")
    (state,) = refresh([before], FakeSlurm("pending", waits_for="BeginTime"))
    assert (state.state, state_note(state)) == (
        "queued",
        "waits for BeginTime; requeued after deadline: left",
    )
    (state,) = refresh([before], FakeSlurm("running"))
    assert state.state == "queued", "its next start has not said so yet"
    (state,) = refresh([before], FakeSlurm("ended", message="its job was cancelled", cause="cancelled"))
    assert (state.state, state.cause, state.retryable) == ("failed", "cancelled", True)
    assert state.message == "its job was cancelled (requeued after deadline: left)"
    (state,) = refresh([before], FakeSlurm("ended"))
    assert (state.state, state.cause) == ("failed", "lost")


@pytest.mark.parametrize("told", [[], [record("8", "FAILED")], [record("7", "COMPLETED")]])
def test_a_job_not_found_is_lost_only_after_the_accounting_lag(
    commands: Commands, tmp_path: Path, told: list[str]
) -> None:
    run = on_slurm(tmp_path, claimed=True)
    squeue(commands)
    sacct(commands, *told)
    assert asked(run).state == "running"
    age(run, ACCOUNTING_LAG_S + 60)
    state = asked(run)
    assert (state.state, state.cause, state.retryable) == ("lost", "lost", True)


@pytest.mark.parametrize(("word", "claimed"), [("PENDING", False), ("RUNNING", True), ("SUSPENDED", True)])
def test_a_job_that_is_alive_by_accounting_alone_is_not_lost(
    commands: Commands, tmp_path: Path, word: str, claimed: bool
) -> None:
    run = on_slurm(tmp_path, claimed=claimed)
    squeue(commands)
    sacct(commands, record("7", word))
    age(run, ACCOUNTING_LAG_S + 60)
    state = asked(run)
    assert (state.state, state.cause) == ("running" if claimed else "queued", None)
    age(run, SILENT_AFTER_S + 60)
    assert asked(run).silent is claimed, "accounting may have missed the end: `resume RUN` stays possible"


def test_jobs_are_queried_by_id_so_that_another_user_s_are_found(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, job_id="7_1")
    by_id = """case "$*" in *--user*|*--me*) ;; *--jobs=7*) echo '7_1|PENDING|N/A|Priority|(null)' ;; esac"""
    commands.add("squeue", by_id)
    sacct(commands)
    age(run, ACCOUNTING_LAG_S + 60)
    assert (asked(run).state, asked(run).waits_for) == ("queued", "Priority")


def test_a_single_job_that_squeue_does_not_list(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    commands.add("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    sacct(commands, record("7", "TIMEOUT"))
    assert asked(run).cause == "timeout"


@pytest.mark.parametrize("accounting", [True, False])
def test_a_hidden_job_of_another_user_is_not_lost(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounting: bool
) -> None:
    run = on_slurm(tmp_path)
    squeue(commands)
    commands.add("sacct", "" if accounting else "exit 1")
    age(run, ACCOUNTING_LAG_S + 60)
    assert asked(run).state == "lost"
    monkeypatch.setattr(os, "getuid", lambda: os.stat(run.path).st_uid + 1)
    state = asked(run)
    assert (state.state, state.message) == ("queued", "another user's job, which is not listed")


def test_without_accounting_squeue_decides(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    squeue(commands)
    commands.add("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    state = asked(run)
    assert (state.state, state.message) == ("lost", "the scheduler does not list its job any more")


def test_a_task_of_an_array_that_never_started_stands_with_others(commands: Commands, tmp_path: Path) -> None:
    states = []
    squeue(commands)
    sacct(
        commands,
        record("7_[1-2,5%1]", "CANCELLED by 0"),
        record("7_0", "TIMEOUT"),
        record("7_3", "FAILED", "1:0"),
    )
    for index in range(6):
        states.append(asked(on_slurm(tmp_path, f"s/n{index}", f"7_{index}")))
    causes = [state.cause for state in states]
    assert causes == ["timeout", "cancelled", "cancelled", "launch_failed", None, "cancelled"]
    assert "--jobs=7 " in commands.calls()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
         "Unable to contact slurm controller (connect failure)"),
        ("exit 1", "squeue failed without a message"),
    ],
)  # fmt: skip
def test_a_controller_that_is_down_is_reported_once_and_changes_no_state(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, why: str
) -> None:
    for number in range(2):
        on_slurm(tmp_path, f"s/n{number}", f"{number}", claimed=number == 1)
    commands.add("squeue", script)
    assert command_line.main(["status", "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "2 runs: 1 running, 1 queued" in said.out
    assert said.err == f"warning: Slurm does not answer ({why}): states are from the run directories\n"
    assert "sacct" not in commands.calls()


def test_a_controller_that_ping_calls_down_is_not_waited_for(commands: Commands, tmp_path: Path) -> None:
    commands.add("scontrol", "echo 'Slurmctld(primary) at head is DOWN'")
    squeue(commands)
    assert SlurmScheduler().poll(["1"]) == {"1": Job("unknown", "scontrol ping: the controller is down")}
    assert "squeue" not in commands.calls()


def test_a_backup_controller_is_queried(commands: Commands) -> None:
    primary, backup = ("Slurmctld(primary) at head is DOWN", "Slurmctld(backup) at spare is UP")
    commands.add("scontrol", f"echo '{primary}'; echo '{backup}'")
    squeue(commands, "1|RUNNING|100|None")
    assert SlurmScheduler().poll(["1"])["1"].status == "running"


def test_without_slurm_states_are_those_of_the_files(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands.folder))  # Slurm may be installed here
    on_slurm(tmp_path)
    said: list[str] = []
    assert [state.state for state in refresh_all(read_runs(tmp_path), said.append)] == ["queued"]
    assert said == [
        "Slurm does not answer (squeue: No such file or directory): states are from the run directories"
    ]


def test_a_found_receipt_is_written_only_on_request(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    journal.entry(run, 0).path("receipt").unlink()
    cluster = FakeSlurm("pending", waits_for="Resources")
    cluster.found = "7"
    (state,) = refresh([read_state(run)], cluster)
    assert (state.state, state.job_id, state.waits_for) == ("queued", "7", "Resources")
    assert read_state(run).state == "submitting"
    refresh([read_state(run)], cluster, receipts=True)
    assert (read_state(run).state, read_state(run).job_id) == ("queued", "7")


def test_a_watch_continues_while_the_controller_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 0.0)
    run = on_slurm(tmp_path, claimed=True)
    cluster = FakeSlurm("unknown", message="it is down")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: cluster)
    watched = follow.PolledRuns(lambda: [read_state(run)])
    wait_until(lambda: watched.read() and watched.notice)
    assert watched.notice == "Slurm does not answer (it is down): states are from the run directories"
    assert watched.read()[0].state == "running"
    cluster.job = Job("pending", waits_for="BeginTime")
    wait_until(lambda: watched.read()[0].state == "queued")
    assert watched.notice == ""
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 3600.0)
    wait_until(lambda: not watched._is_querying())
    journal.write_intent(run, {"cluster": "slurm", "attempts": 1, "attempts_before_code": 0, **KEYS})
    journal.write_receipt(run, 1, "8")
    journal.claim(
        run, 1, process=current_process().as_dict() | {"host": "node-1"}, job_id="8", code_hash=CODE
    )
    assert watched.read()[0].state == "running", "an old word on what is over"
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 0.0)
    cluster.job = Job("ended", "its job was cancelled", "cancelled")
    wait_until(lambda: watched.read()[0].cause == "cancelled")


def test_a_run_on_another_slurm_cluster_keeps_its_state(tmp_path: Path) -> None:
    for name in ("here", "there", "old", "unknown"):
        on_cluster(tmp_path, f"s/{name}", {"old": None, "unknown": "there"}.get(name, name))
    journal.entry(RunDir(tmp_path / "s/unknown"), 0).path("receipt").unlink()
    cluster = FakeSlurm("ended", message="its job was cancelled", cause="cancelled")
    cluster.is_cluster, cluster.found = "here", "9"
    warnings: list[str] = []
    states = refresh(read_runs(tmp_path), cluster, receipts=True, warn=warnings.append)
    assert {s.name: (s.state, s.message) for s in states} == {
        "here": ("failed", "its job was cancelled"),
        "old": ("failed", "its job was cancelled"),
        "there": ("queued", "its job is on cluster there"),
        "unknown": ("submitting", "its job is on cluster there"),
    }
    assert warnings == [
        "this is cluster here: states of runs with jobs on cluster there are from the run directories"
    ]
    kinds = {action.name: action.kind for action in resume_actions(states, CODE)}
    assert (kinds["there"], kinds["unknown"], kinds["here"]) == ("in_progress", "in_progress", "retry")


def test_a_job_that_failed_on_a_full_disk_names_the_disk(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_slurm(tmp_path, claimed=True)
    squeue(commands)
    sacct(commands, record("7", "FAILED", "69:0"))
    monkeypatch.setattr(outcomes, "_FULL_BELOW_BYTES", float("inf"))
    assert f"the disk is full: {run.path}" in (asked(run).message or "")
    disk = SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1, f_frsize=1 << 30)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert f"the file system is read-only: {run.path}" in (asked(run).message or "")


def test_an_end_that_could_not_be_recorded_is_read_from_the_log(commands: Commands, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, claimed=True)
    line = "agent: killed: not recorded: [Errno 13] Permission denied: 'a'"
    write_text(run.attempt(0).node_log(0), f"now {line}\n")
    squeue(commands)
    sacct(commands, record("7", "FAILED", "1:0"))
    state = asked(run)
    assert (state.state, state.cause) == ("failed", "killed")
    assert "Permission denied" in (state.message or "")
