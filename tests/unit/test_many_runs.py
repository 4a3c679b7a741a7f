"""Calls of Slurm's commands by `status` and `watch` of thousands of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from jobs.cli.follow import PolledRuns
from jobs.schedulers.interface import Job
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState
from tests.support.commands import Commands, record, sacct, squeue

MANY = 10_000


def running(count: int) -> list[RunState]:
    """Runs with the jobs 1000, 1001, ..., as their files have them."""
    folder = Path("runs/demo")
    return [
        RunState(RunDir(folder / f"n{number}"), "running", cluster="slurm", job_id=str(1000 + number))
        for number in range(count)
    ]


def list_jobs(commands: Commands, count: int) -> None:
    """squeue lists the first `count` jobs, all of which run."""
    commands.add("squeue", f"[ {count} = 0 ] || seq -f '%.0f|RUNNING|100|None|(null)' 1000 {999 + count}")
    commands.add("scontrol", "echo 'Slurmctld(primary) at head is UP'")


def calls(commands: Commands, name: str) -> list[str]:
    """The arguments of each call of this command."""
    prefix = f"{commands.folder}/{name} "
    return [line.removeprefix(prefix) for line in commands.calls().splitlines() if line.startswith(prefix)]


@pytest.mark.parametrize("count", [MANY, 2 * MANY])  # the ids of the second do not fit into one argument
def test_one_squeue_serves_all_runs_and_sacct_is_not_called_while_jobs_live(
    commands: Commands, count: int
) -> None:
    list_jobs(commands, count)
    sacct(commands)
    found = refresh_all(running(count))
    assert {state.state for state in found} == {"running"}
    assert len(found) == count
    assert len(calls(commands, "squeue")) == 1
    assert calls(commands, "scontrol") == ["ping"]
    assert calls(commands, "sacct") == []


def test_sacct_gets_the_jobs_alone_that_squeue_does_not_list(commands: Commands) -> None:
    list_jobs(commands, MANY - 2)
    sacct(commands, *(record(str(1000 + MANY - number), "TIMEOUT") for number in (1, 2)))
    ids = [str(1000 + number) for number in range(MANY)]
    found = SlurmScheduler().poll(ids)
    assert [found[job_id].cause for job_id in ids[-3:]] == [None, "timeout", "timeout"]
    (call,) = calls(commands, "sacct")
    assert f"--jobs={998 + MANY},{999 + MANY}" in call


def test_a_watch_asks_sacct_once_about_a_job_that_has_ended(commands: Commands) -> None:
    squeue(commands, "1000|RUNNING|100|None")
    sacct(commands, record("1001", "FAILED", "1:0"))
    scheduler = SlurmScheduler()
    for _ in range(3):
        found = scheduler.poll(["1000", "1001"])
    assert [found[job_id].status for job_id in ("1000", "1001")] == ["running", "ended"]
    assert (len(calls(commands, "squeue")), len(calls(commands, "sacct"))) == (3, 1)
    squeue(commands, "1000|RUNNING|100|None", "1001|PENDING|N/A|BeginTime")  # requeued by hand
    assert scheduler.poll(["1000", "1001"])["1001"].status == "pending"


def test_a_watch_keeps_its_schedulers(commands: Commands) -> None:
    squeue(commands)
    sacct(commands, record("1000", "FAILED", "1:0"))
    watched = PolledRuns(lambda: running(1))
    for _ in range(2):
        watched._query(running(1))
    assert len(calls(commands, "sacct")) == 1


def test_records_of_many_jobs_are_found_by_their_ids(commands: Commands) -> None:
    """Tasks of an array that never started share one record."""
    list_jobs(commands, 0)
    done = [record(str(1000 + number), "COMPLETED") for number in range(3)]
    sacct(commands, *done, record("7_[0-4999]", "CANCELLED by 0"))
    ids = [*map(str, range(1000, 1003)), *(f"7_{number}" for number in range(5000))]
    found = SlurmScheduler().poll(ids)
    assert [found[job_id].status for job_id in ("1000", "7_0", "7_4999")] == ["not_found", "ended", "ended"]
    assert found["7_4999"] == Job("ended", "its job was cancelled by root", "cancelled")
