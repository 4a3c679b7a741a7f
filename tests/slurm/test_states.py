"""What became of jobs, as a real Slurm tells it: how they ended, why they wait, what they used."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import submit as command_line
from disttrain.records import gpu_hours
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli.tables import state_note
from jobs.core import journal
from jobs.node.torchrun import CANCELLED_BY_SCHEDULER
from jobs.schedulers.slurm import queries
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.gpu_hours import usage_of_runs
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState, read_runs
from tests.support.jobs import (
    in_a_fork,
    starts,
    status,
    submit,
    sweep_plan,
    wait_for,
    wait_until,
)
from tests.support.minicluster import MiniCluster
from tests.support.requeued import nothing_starts


def asked(root: Path) -> RunState:
    """The only run's state, with Slurm's word on it."""
    (state,) = refresh_all(read_runs(root))
    return state


def begun(root: Path, mode: str = "hang", **job: object) -> tuple[RunDir, str]:
    """A run whose launcher has started, and its job."""
    (action,) = submit(sweep_plan("a", mode=mode, **job), SlurmScheduler(), root)
    run = RunDir(root / "demo" / "a")
    wait_until(lambda: starts(run))
    return run, str(action.job_id)


def lose_the_last_word(run: RunDir, job: str) -> None:
    """The job ends, and what its agent wrote of it does not come through."""
    wait_until(lambda: status(job) == "ended")
    run.failed.unlink(missing_ok=True)


def node_of(run: RunDir) -> int:
    return int(read_json(run.attempt(0).record)["nodes"][0].rpartition("-")[2])


def test_why_it_waits_and_that_it_was_cancelled_before_it_started(root: Path, on_slurm: MiniCluster) -> None:
    with nothing_starts(on_slurm):
        (action,) = submit(sweep_plan("a"), SlurmScheduler(), root)
        wait_until(lambda: asked(root).waits_for)
        assert state_note(asked(root)) == "waits for PartitionDown"
        on_slurm.ask("scancel", str(action.job_id))
        wait_until(lambda: not asked(root).active)
    state = asked(root)
    assert (state.state, state.cause) == ("failed", "cancelled")
    wait_until(lambda: asked(root).message == "its job was cancelled by root")  # accounting lags
    assert not list(root.rglob("*.claim*.json")), "to look is not to write"
    assert [action.kind for action in submit(sweep_plan("a"), SlurmScheduler(), root)] == ["retry"]


def test_a_running_job_cancelled_behind_our_back(root: Path, on_slurm: MiniCluster) -> None:
    run, job = begun(root)
    assert (journal.entry(run, 0).read("intent") or {})["cluster_name"] == on_slurm.name
    assert list(SlurmScheduler().cancel({job: "of another run"})) == [job]
    assert status("1") == "not_found"  # squeue calls it an invalid id

    def as_another_user() -> None:
        os.setgid(65534)
        os.setuid(65534)
        assert status(job) == "running"
        (reason,) = SlurmScheduler().cancel({job: None}).values()
        assert reason.endswith("Access/permission denied")

    assert wait_for(in_a_fork(as_another_user)) == 0
    on_slurm.ask("scancel", job)
    wait_until(lambda: not asked(root).active)
    assert (asked(root).state, asked(root).cause) == ("failed", "cancelled")
    assert read_json(run.failed)["cause"] == "cancelled"
    assert asked(root).message == CANCELLED_BY_SCHEDULER
    wait_until(lambda: queries.records([job])[-1].cancelled_by)
    wait_until(lambda: status(job) == "ended")  # Slurm's epilog runs longer than the agents
    shown = on_slurm.submit("show", "a", "--runs", str(root), cwd=root)
    assert "cancelled: its job was cancelled by root\n" in shown


def test_a_job_whose_last_word_was_lost_is_told_of_by_slurm(root: Path, on_slurm: MiniCluster) -> None:
    run, job = begun(root)
    on_slurm.ask("scancel", job)
    lose_the_last_word(run, job)
    state = asked(root)
    assert (state.state, state.cause) == ("failed", "cancelled")
    assert re.fullmatch("its job was cancelled( by root)?", str(state.message))  # accounting lags


@pytest.mark.slow  # limits are whole minutes
def test_a_job_ended_hard_at_its_time_limit(root: Path, on_slurm: MiniCluster) -> None:
    run, job = begun(root, time_limit_min=1)
    lose_the_last_word(run, job)
    state = asked(root)
    assert (state.cause, state.message) == ("timeout", "its job was ended at its time limit")
    assert state.retryable


@pytest.mark.slow
def test_a_node_that_fails_is_named_as_the_cause(root: Path, faulty: MiniCluster) -> None:
    run, job = begun(root)
    faulty.ask("scontrol", "update", f"jobid={job}", "requeue=0")
    faulty.kill_node(node_of(run))
    wait_until(lambda: not asked(root).active)
    state = asked(root)
    assert (state.state, state.message, state.retryable) == ("lost", "a node of its job failed", True)


@pytest.mark.slow
def test_the_controller_dies_and_comes_back_while_a_job_runs(
    root: Path, faulty: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run, job = begun(root)
    faulty.kill_controller()
    assert command_line.main(["status", "--runs", str(root)]) == 0
    said = capsys.readouterr()
    assert re.search(r"^a +running", said.out, re.MULTILINE)
    assert said.err.startswith("warning: Slurm does not answer (")
    assert said.err.endswith("): states are from the run directories\n")
    assert said.err.count("\n") == 1
    faulty.start_controller()
    assert command_line.main(["status", "--runs", str(root)]) == 0
    assert capsys.readouterr().err == ""
    assert (asked(root).state, asked(root).job_id) == ("running", job)
    assert len(starts(run)) == 1, "the job went on"


def test_accounting_and_our_own_times_agree_on_a_job_requeued_by_hand(
    root: Path, on_slurm: MiniCluster
) -> None:
    run, job = begun(root)
    on_slurm.ask("scontrol", "requeue", job)
    wait_until(lambda: asked(root).waits_for == "BeginTime")
    assert re.match(
        "waits for BeginTime(, expected to start in .*)?; requeued after preempted", state_note(asked(root))
    )
    wait_until(lambda: len(starts(run)) == 2)
    on_slurm.ask("scancel", job)
    wait_until(lambda: not asked(root).active)
    wait_until(lambda: all(each.ended for each in queries.records([job])))

    own, told = gpu_hours.read(run), usage_of_runs([run])[run.path]
    assert own is not None
    assert (own.source, told.source, own.unit, told.unit) == ("timestamps", "sacct", "GPU-hours", "GPU-hours")
    assert len(own.starts) == len(told.starts) == own.attempts == told.attempts == 2
    for ours, theirs in zip(own.starts, told.starts, strict=True):
        assert ours.devices == theirs.devices == 1
        # an attempt begins after the set-up of its job, and ends before KillWait: slow on a busy machine
        assert -1 <= gpu_hours.seconds_between(theirs.started, ours.started) < 60
        assert abs(gpu_hours.seconds_between(ours.ended, theirs.ended)) < 60
    assert told.hours == pytest.approx(sum(each.elapsed_s for each in queries.records([job])) / 3600)
    assert own.hours == pytest.approx(told.hours, abs=120 / 3600)
    assert told.queue_wait_s is not None
    assert told.queue_wait_s >= 5, "the wait of a requeued job, at least"
    assert own.queue_wait_s == pytest.approx(told.queue_wait_s, abs=60)
    usage_of_runs([run], write=True)
    assert gpu_hours.read(run) == told
