"""A job that Slurm takes its nodes from is requeued, and computes what an undisturbed run computes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.checkpoint import committed_paths
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal, requeue_policy
from jobs.core.requeue_policy import PREEMPTION_DELAY_S
from tests.support.damaged_checkpoint import damage
from tests.support.jobs import STANDIN, settled, starts, states, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import (
    AGENT,
    EVERY,
    Job,
    assert_the_same,
    nothing_starts,
    preempt,
    steps_lost,
    submitted,
    undisturbed,
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # six starts
def test_pre_empted_signalled_and_suspended(slurm: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(slurm, tmp_path)
    wait_until(lambda: job.run.attempt(0).rendezvous.exists())  # torch is being imported
    job.signal("TERM")
    assert ended(job, 0) == ("preempted", "requeue", None)

    job.wait_for_slow_steps(1)
    with nothing_starts(slurm):
        preempt(slurm)
        assert ended(job, 1)[:2] == ("preempted", "requeue")
        assert job.attempt(1)["exit_codes"].keys() == {"0", "1"}
        wait_until(lambda: job.state.state == "queued")
        wait_until(
            lambda: status(job)["runs"][0]["state"] == "queued"
        )  # Slurm may not have ended the job yet
        assert status(job)["usage"][0]["attempts"] == 2

    job.wait_for_slow_steps(2)
    job.signal("USR1")
    assert ended(job, 2)[:2] == ("preempted", "requeue")
    assert not list(job.run.path.glob("attempts/*/error-*.json"))
    assert steps_lost(job.run) == 0

    job.wait_for_slow_steps(3)
    slurm.ask("scontrol", "suspend", job.id)
    time.sleep(3)  # longer than any wait for a signal
    slurm.ask("scontrol", "resume", job.id)
    # Without control groups Slurm signals srun as well, which then kills the agents.
    job.signal("TERM", "--full")
    assert ended(job, 3)[:2] == ("lost", "requeue")

    job.wait_for_slow_steps(4)
    slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=0")
    try:
        preempt(slurm)
        wait_until(lambda: job.attempt(5))
    finally:
        slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=30")
    assert job.attempt(4)["cause"] in ("preempted", "lost")
    assert job.wait_for_end().state == "done"
    assert {job.attempt(number)["job_id"] for number in range(6)} == {job.id}
    assert len(job.attempts()) == 6
    assert_the_same(job.run, reference)


def ended(job: Job, attempt: int) -> tuple[Any, ...]:
    """Cause of the end of an attempt, what comes next, and the newest checkpoint by then."""
    record = job.wait_until_closed(attempt)
    return record["cause"], record["next"], record["checkpoint_after"]


def status(job: Job) -> dict[str, Any]:
    """The only run in `status --long`, with its usage."""
    document: dict[str, Any] = json.loads(job.cluster.submit("status", "--long", "--json", cwd=job.folder))
    return document


@pytest.mark.slow
@pytest.mark.timeout(900)  # six starts; srun ends a step 60 s after the agent of node 0
def test_killed_step_by_step_and_then_without_a_controller(slurm: MiniCluster, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path, ranks=3, rendezvous_timeout_s=30)
    for attempt, process in enumerate(("srun", "slurm_script")):
        job.wait_for_slow_steps(attempt)
        os.kill(slurm.processes(job.nodes(attempt)[0], only=process)[0], signal.SIGKILL)
        cause, following, _ = ended(job, attempt)
        assert (cause in ("lost", "preempted"), following) == (True, "requeue")
        assert job.attempt(attempt)["failed_nodes"] == []

    for attempt, node in ((2, 1), (3, 0)):
        job.wait_for_slow_steps(attempt)
        job.kill(attempt, node, AGENT)
        # The ranks save, since a torchrun ends with its agent. The other torchruns would wait for it.
        assert ended(job, attempt)[:2] == ("preempted", "requeue")
        record = job.attempt(attempt)
        assert record["checkpoint_after"] > record["checkpoint_before"] + EVERY
    assert job.attempt(2)["exit_codes"] == {"0": 0, "2": 0}

    job.wait_for_slow_steps(4)
    agent = job.attempt(4)
    slurm.kill_controller()
    try:  # signalled as by Slurm, if it were there
        slurm.on_node(job.nodes(4)[0], "kill", "-USR1", str(agent["pid"]))
        assert ended(job, 4)[:2] == ("preempted", "requeue")
        log = job.run.attempt(4).node_log(0)
        wait_until(lambda: "trying again" in log.read_text())
    finally:
        slurm.start_controller()
    wait_until(lambda: job.attempt(5))  # slurmctld waits a minute before it gives the job's nodes away again
    assert job.wait_for_end().state == "done"
    assert {job.attempt(number)["job_id"] for number in range(6)} == {job.id}
    assert len(job.attempts()) == 6
    assert_the_same(job.run, undisturbed(tmp_path, ranks=3))


@pytest.mark.slow
def test_cancelled_in_the_queue_and_resumed_from_a_checkpoint_that_cannot_be_loaded(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    job = submitted(slurm, tmp_path)
    job.wait_for_slow_steps(0)

    def in_queue() -> list[str]:
        listed = slurm.ask("squeue", "--noheader", "-o", "%i %T").splitlines()
        return [state for found, state in map(str.split, listed) if found == job.id]

    with nothing_starts(slurm):
        job.signal("USR1")
        wait_until(lambda: job.state.state == "queued")
        assert "requeued after preempted: saved and stopped at step" in str(job.state.message)
        wait_until(lambda: in_queue() == ["PENDING"])
        slurm.submit("cancel", "job", cwd=tmp_path)
        assert (job.state.state, job.state.cause, job.state.retryable) == ("failed", "cancelled", True)
        wait_until(lambda: not in_queue())
    assert len(job.attempts()) == 1

    newest = committed_paths(job.run.checkpoints)[0]
    damage(newest, "no tensor")  # with checksums that fit
    slurm.submit("resume", "job", "--cluster", "slurm", cwd=tmp_path)
    wait_until(lambda: job.state.state == "failed" and job.state.cause != "cancelled")
    assert (job.state.cause, job.attempt(1)["next"]) == ("refused", None)
    assert f"{newest} is intact" in str(job.state.message)
    assert newest.is_dir()
    assert len(job.attempts()) == 2


def test_a_task_of_an_array_requeues_itself_alone(root: Path, slurm: MiniCluster) -> None:
    shared = "model: {kind: mlp}\ndata: {kind: digits}\ntrain: {steps: 9, local_batch_size: 1}\n"
    (root.parent / "a.yaml").write_text(shared + "job: {time_limit_min: 5, env: {STANDIN: leave-once}}\n")
    sweep = ("sweep", "a.yaml", "--nodes", "1", "--repeats", "2", "--cluster", "slurm", "--no-report")
    slurm.submit(*sweep, cwd=root.parent)
    wait_until(lambda: all(starts(state.run) for state in states(root).values()))
    # The one whose plain job id is the array's: by that id, Slurm would requeue both.
    by_task = {str(state.job_id): state.run for state in states(root).values()}
    listed = map(str.split, slurm.ask("squeue", "--noheader", "--array", "-o", "%i %A %F").splitlines())
    tasks = [(task, own, array) for task, own, array in listed if task in by_task]
    (asked,) = (task for task, own, array in tasks if own == array)
    assert len(by_task) == len(tasks) == 2
    leaves = by_task.pop(asked)
    (stays,) = by_task.values()
    slurm.ask("scancel", "--signal=USR1", asked)
    wait_until(lambda: len(starts(leaves)) == 2)
    assert len(starts(stays)) == 1
    for run in (leaves, stays):
        (run.path / "go").touch()
    assert {state.state for state in settled(root).values()} == {"done"}
    records = [read_json(attempt.record) for attempt in leaves.attempts()]
    assert [(one["job_id"], one["cause"]) for one in records] == [(asked, "preempted"), (asked, "finished")]
    assert starts(stays) == [(0, 0)], "the other task goes on undisturbed"


@pytest.mark.slow
def test_preempted_during_start_up_the_job_goes_on_after_a_pause(
    slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    job = submitted(
        slurm, tmp_path, every_steps=None, env={"STANDIN": "hang"}, max_attempts=1, max_requeues=2
    )
    for attempt in range(3):
        wait_until(lambda: job.run.attempt(attempt).rendezvous.exists())  # noqa: B023
        slurm.ask("scontrol", "requeue", job.id)
        assert ended(job, attempt)[:2] == ("preempted", "requeue" if attempt < 2 else None)
        if attempt == 1:  # the second in a row
            earliest = time.time() + PREEMPTION_DELAY_S / 2
            wait_until(lambda: (earliest_start(slurm, job.id) or 0) > earliest)  # noqa: B023
            slurm.ask("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    assert "Restarts=3" in told(slurm, job.id)
    said = job.wait_for_end()
    assert (said.state, said.retryable) == ("failed", True)
    assert "not requeued: job.max_requeues=2 reached" in str(said.message)
    # Slurm has requeued it all the same: it leaves at once, and says so to Slurm.
    wait_until(lambda: f"ExitCode={requeue_policy.EXIT_DO_NOT_REQUEUE}:0" in told(slurm, job.id))
    assert len(job.attempts()) == 3
    assert journal.is_revoked(journal.entry(job.run, 0).claims())


def earliest_start(cluster: MiniCluster, job_id: str) -> float | None:
    """Slurm's EligibleTime of a job, in seconds since the epoch."""
    found = re.search(r"EligibleTime=(\S+)", told(cluster, job_id))
    return datetime.fromisoformat(found[1]).timestamp() if found and found[1] != "Unknown" else None


def told(cluster: MiniCluster, job_id: str) -> str:
    return cluster.ask("scontrol", "show", "job", job_id)
