"""Jobs as squeue and sacct list them, against stand-ins for these commands."""

from __future__ import annotations

import os

import pytest

from jobs.schedulers.interface import Job
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from tests.support.commands import Commands, record, sacct, squeue


def poll(job_id: str = "7") -> Job:
    return SlurmScheduler().poll([job_id])[job_id]


@pytest.mark.parametrize("by", ["squeue", "sacct"])
@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "timeout"),
        ("NODE_FAIL", "lost"),
        ("OUT_OF_MEMORY", "out_of_memory"),
        ("PREEMPTED", "preempted"),
        ("DEADLINE", "timeout"),
        ("BOOT_FAIL", "launch_failed"),
        ("FAILED", None),
    ],
)
def test_how_a_job_ended(commands: Commands, word: str, cause: str | None, by: str) -> None:
    squeue(commands, *[f"7|{word}|100|None"] * (by == "squeue"))
    of_accounting = f"{word} by 0" if word == "CANCELLED" else word
    sacct(commands, record("7", "REQUEUED", submitted=90), record("7", of_accounting))
    job = poll()
    assert (job.status, job.cause, job.certain) == ("ended", cause, True)
    assert ("sacct" in commands.calls()) is (by == "sacct" or word == "CANCELLED")
    assert (job.message or "").endswith(" by root") is (word == "CANCELLED")


UNLISTED = "squeue does not list its job, which is {} by sacct"


@pytest.mark.parametrize(
    ("queued", "accounted", "expected"),
    [
        ("PENDING|N/A|Dependency", "", Job("pending", waits_for="Dependency")),
        ("EXPEDITING|900|None", "", Job("pending", start_expected=900.0)),
        ("RUNNING|100|None", "", Job("running", started=100.0)),
        ("CONFIGURING|100|None", "", Job("running", started=100.0)),
        ("SUSPENDED|100|None", "", Job("running", "suspended by Slurm", started=100.0)),
        ("CANCELLED|100|None", "RUNNING", Job("ended", "its job was cancelled", "cancelled")),
        ("CANCELLED|100|None", "", Job("ended", "its job was cancelled", "cancelled")),
        ("", "", Job("not_found", "neither squeue nor sacct lists its job", certain=False)),
        ("", "COMPLETED", Job("not_found", "its job completed without a recorded end")),
        ("", "PENDING", Job("pending", UNLISTED.format("PENDING"), certain=False)),
        ("", "RUNNING", Job("running", UNLISTED.format("RUNNING"), certain=False)),
    ],
)
def test_a_job_by_squeue_else_by_sacct(
    commands: Commands, queued: str, accounted: str, expected: Job
) -> None:
    squeue(commands, *[f"7|{queued}"] * bool(queued))
    sacct(commands, record("8", "FAILED"), *[record("7", accounted)] * bool(accounted))
    assert poll() == expected


@pytest.mark.parametrize(("code", "text"), [("69:0", "exit code 69"), ("0:9", "signal 9")])
def test_the_exit_code_of_a_job_that_failed(commands: Commands, code: str, text: str) -> None:
    squeue(commands)
    sacct(commands, record("7", "FAILED", code))
    assert poll().message == f"its job failed ({text})"


def test_tasks_that_never_started_share_a_record(commands: Commands) -> None:
    squeue(commands)
    ended = (record("7_0", "TIMEOUT"), record("7_3", "FAILED", "1:0"))
    sacct(commands, record("7_[1-2,5%1]", "CANCELLED by 0"), *ended)
    jobs = SlurmScheduler().poll([f"7_{index}" for index in range(6)])
    assert [job.cause for job in jobs.values()] == [
        "timeout",
        "cancelled",
        "cancelled",
        None,
        None,
        "cancelled",
    ]
    assert [job.status for job in jobs.values()].count("not_found") == 1
    assert "--jobs=7 " in commands.calls(), "without a user: another user's jobs are listed as well"
    assert "--user" not in commands.calls()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'x error: Invalid job id specified' >&2; exit 1", "its job was ended at its time limit"),
        ("echo 'slurm_load_jobs error: Unable to contact x' >&2; exit 1", "Unable to contact x"),
        ("exit 1", "squeue failed without a message"),
    ],
)
def test_a_squeue_that_fails_is_no_answer_unless_it_knows_no_such_job(
    commands: Commands, script: str, expected: str
) -> None:
    commands.add("squeue", script)
    sacct(commands, record("7", "TIMEOUT"))
    job = poll()
    assert (job.message, job.status == "unknown") == (expected, "Invalid" not in script)
    assert ("sacct" in commands.calls()) is ("Invalid" in script)


def test_without_accounting_squeue_decides(commands: Commands) -> None:
    squeue(commands)
    commands.add("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert poll() == Job("ended", certain=False)


def test_a_controller_that_ping_calls_down_is_not_waited_for_unless_a_backup_answers(
    commands: Commands,
) -> None:
    primary, backup = ("Slurmctld(primary) at head is DOWN", "Slurmctld(backup) at spare is UP")
    commands.add("scontrol", f"echo '{primary}'")
    squeue(commands, "7|RUNNING|100|None")
    assert poll() == Job("unknown", "scontrol ping: the controller is down")
    assert "squeue" not in commands.calls()
    commands.add("scontrol", f"echo '{primary}'; echo '{backup}'")
    assert poll().status == "running"


def test_without_slurm(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(commands.folder))  # Slurm may be installed here
    assert poll() == Job("unknown", "squeue: No such file or directory")
