"""A job that Slurm takes its nodes from is requeued, and computes what an undisturbed run computes."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal, requeue_policy
from jobs.core.requeue_policy import PREEMPTION_DELAY_S
from tests.support.damaged_checkpoint import damage
from tests.support.jobs import STANDIN, settled, starts, states, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import (
    assert_figures_cover_all_attempts,
    assert_the_same,
    long_status,
    nothing_starts,
    preempt,
    steps_lost,
    submitted,
)


@pytest.mark.slow
def test_preempted_with_grace(slurm: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(slurm, tmp_path)
    job.wait_for_step(30)
    with nothing_starts(slurm):
        preempt(slurm)
        left = job.wait_until_closed(0)
        assert (left["cause"], left["next"], left["job_id"]) == ("preempted", "requeue", job.id)
        assert left["exit_codes"].keys() == {"0", "1", "2"}
        wait_until(lambda: job.state.state != "running")
        assert (job.state.state, job.state.job_id) == ("queued", left["job_id"])
        wait_until(lambda: long_status(job)["state"] == "queued")  # Slurm may not have ended the job yet
        assert long_status(job)["usage"]["attempts"] == 1
    assert job.wait_for_end().state == "done"
    assert [job.attempt(number)["job_id"] for number in (0, 1)] == [left["job_id"]] * 2
    assert len(job.attempts()) == 2
    assert steps_lost(job.run) == 0
    assert_the_same(job.run, reference)


@pytest.mark.slow
def test_no_signal_to_the_step_ends_a_rank(slurm: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(slurm, tmp_path)
    for attempt, name in enumerate(("USR1", "USR2", "TERM")):
        job.wait_for_step(20 * (attempt + 1), attempt)
        job.signal(name)
        left = job.wait_until_closed(attempt)
        assert (left["cause"], left["next"]) == ("preempted", "requeue"), name
        assert not list(job.run.attempt(attempt).path.glob("error-*.json")), name
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 4
    assert steps_lost(job.run) == 0
    assert_the_same(job.run, reference)
    assert_figures_cover_all_attempts(job)


@pytest.mark.slow
def test_suspended_then_signalled_in_full(slurm: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(slurm, tmp_path)
    job.wait_for_step(5)
    slurm.ask("scontrol", "suspend", job.id)
    time.sleep(3)  # longer than any wait for a signal
    slurm.ask("scontrol", "resume", job.id)
    job.wait_for_step(25)
    # Without control groups Slurm signals srun as well, which then kills the agents.
    job.signal("TERM", "--full")
    left = job.wait_until_closed(0)
    assert (left["cause"], left["next"], left["checkpoint_after"]) == ("lost", "requeue", 20)
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
    assert_the_same(job.run, reference)


@pytest.mark.slow
@pytest.mark.timeout(900)  # srun ends the step 60 s after the agent of node 0
def test_killed_agents(slurm: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(slurm, tmp_path, rendezvous_timeout_s=30)
    job.wait_for_step(25)
    job.kill_agent(0, rank=1)
    left = job.wait_until_closed(0)
    # The ranks save, since a torchrun ends with its agent. The other torchruns would wait for it.
    assert (left["cause"], left["next"]) == ("preempted", "requeue")
    assert (left["exit_codes"], left["checkpoint_after"] >= 25) == ({"0": 0, "2": 0}, True)
    job.wait_for_step(60, attempt=1)
    job.kill_agent(1, rank=0)
    left = job.wait_until_closed(1)
    assert (left["cause"], left["next"], left["checkpoint_after"] >= 60) == ("preempted", "requeue", True)
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 3
    assert_the_same(job.run, reference)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["srun", "slurm_script"])
def test_a_killed_srun_or_batch_shell(
    slurm: MiniCluster, tmp_path: Path, reference: RunDir, killed: str
) -> None:
    job = submitted(slurm, tmp_path)
    job.wait_for_step(25)
    os.kill(slurm.processes(job.nodes(0)[0], only=killed)[0], signal.SIGKILL)
    left = job.wait_until_closed(0)
    assert (left["cause"] in ("lost", "preempted"), left["next"]) == (True, "requeue")
    assert left["failed_nodes"] == []
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
    assert_the_same(job.run, reference)


@pytest.mark.slow
def test_a_signal_before_training_begins(slurm: MiniCluster, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path, steps=5, slow_s=0)
    wait_until(lambda: job.run.attempt(0).rendezvous.exists())  # torch is being imported
    job.signal("TERM")
    left = job.wait_until_closed(0)
    assert (left["cause"], left["next"], left["checkpoint_after"]) == ("preempted", "requeue", None)
    assert job.wait_for_end().state == "done"
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
    ended = [read_json(attempt.record) for attempt in leaves.attempts()]
    assert [(one["job_id"], one["cause"]) for one in ended] == [(asked, "preempted"), (asked, "finished")]
    assert starts(stays) == [(0, 0)], "the other task goes on undisturbed"


@pytest.mark.slow
def test_a_checkpoint_with_right_checksums_that_cannot_be_loaded_is_refused(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    job = submitted(slurm, tmp_path, slow_s=0.05)
    job.wait_for_step(45)
    with nothing_starts(slurm):
        job.signal("USR1")
        saved = job.wait_until_closed(0)["checkpoint_after"]
        altered = job.run.checkpoints / f"step-{saved:08d}"
        damage(altered, "no tensor")
    ended = job.wait_for_end()
    assert (ended.state, ended.cause) == ("failed", "refused")
    assert f"{altered} is intact" in str(ended.message)
    assert altered.is_dir()
    assert len(job.attempts()) == 2  # the refused one is not requeued


@pytest.mark.slow
def test_cancelled_while_it_waits_for_its_requeue(slurm: MiniCluster, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path)
    job.wait_for_step(2)

    def in_queue() -> list[str]:
        listed = slurm.ask("squeue", "--noheader", "-o", "%i %T").splitlines()
        return [state for found, state in map(str.split, listed) if found == job.id]

    with nothing_starts(slurm):
        job.signal("USR1")
        wait_until(lambda: job.state.state == "queued")
        assert "requeued after preempted: saved and stopped at step" in str(job.state.message)
        wait_until(lambda: in_queue() == ["PENDING"])
        slurm.submit("cancel", "job", cwd=job.run.path.parents[2])
        assert (job.state.state, job.state.cause, job.state.retryable) == ("failed", "cancelled", True)
        wait_until(lambda: not in_queue())
    assert len(job.attempts()) == 1


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
        left = job.wait_until_closed(attempt)
        assert (left["cause"], left["next"]) == ("preempted", "requeue" if attempt < 2 else None)
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


@pytest.mark.slow  # restarted, slurmctld waits a minute before it gives the job's nodes away again
def test_the_controller_is_away_when_the_job_wants_its_requeue(
    slurm: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    job = submitted(slurm, tmp_path, slow_s=0.2)
    job.wait_for_step(20)
    agent = job.attempt(0)
    slurm.kill_controller()
    try:
        node = int(agent["host"].rpartition("-")[2])
        slurm.on_node(node, "kill", "-USR1", str(agent["pid"]))  # as Slurm would, if it were there
        left = job.wait_until_closed(0)
        assert (left["cause"], left["next"]) == ("preempted", "requeue")
        log = job.run.attempt(0).node_log(0)
        wait_until(lambda: "trying again" in log.read_text())
    finally:
        slurm.start_controller()
    wait_until(lambda: job.attempt(1))
    assert job.attempt(1)["job_id"] == left["job_id"]
    assert job.attempt(0)["next"] == "requeue"
    assert job.wait_for_end().state == "done"
    assert steps_lost(job.run) == 0
    assert_the_same(job.run, reference)


def told(cluster: MiniCluster, job_id: str) -> str:
    return cluster.ask("scontrol", "show", "job", job_id)
