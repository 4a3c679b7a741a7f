"""A node, a rank, the disk or a link fails: the run completes anyway."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from tests.support import requeued
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import EVERY, RANK, Job, assert_the_same, steps_lost, submitted
from tests.support.small_disk import fill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_rank_is_killed_or_frozen_and_the_disk_is_full(
    three_nodes: MiniCluster, small_disk: Path, reference: RunDir
) -> None:
    """A restart avoids the node that failed last, and uses one that failed before, as it has no other."""
    job = submitted(three_nodes, small_disk, slow_s=3.0, step_timeout_s=15)  # no save while the disk is full
    for attempt in (0, 1):
        job.wait_for_slow_steps(attempt)
        job.kill(attempt, 1, RANK)
        assert_failed_on_node_1(job, attempt, "killed")
    assert job.nodes(0)[1] in job.nodes(2)

    job.wait_for_slow_steps(2)
    job.kill(2, 1, RANK, signal.SIGSTOP)
    wait_until(lambda: job.attempt(2).get("ended") or "no progress" in str(job.state.message))
    assert str(job.state.message).startswith("no progress: "), "before the end"
    assert_failed_on_node_1(job, 2, "hung")
    assert job.attempt(2)["message"].startswith("rank 1 stopped: no heartbeat for ")

    job.wait_for_slow_steps(3)
    with requeued.nothing_starts(three_nodes):
        fill(small_disk / "filler")
        job.kill(3, 1, RANK)
        wait_until(lambda: "Restarts=4" in three_nodes.ask("scontrol", "show", "job", job.id))
        assert job.attempt(3)["ended"] is None, "the disk is full"
        (small_disk / "filler").unlink()

    assert job.wait_for_end().state == "done"
    assert job.attempt(3)["cause"] == "lost", "the next start has closed it"
    assert len(job.attempts()) == 5
    assert steps_lost(job.run) <= 4 * 2 * EVERY
    assert_the_same(job.run, reference)


def assert_failed_on_node_1(job: Job, attempt: int, cause: str) -> None:
    """The next start is on other nodes."""
    record, failed = job.wait_until_closed(attempt), job.nodes(attempt)[1]
    assert (record["cause"], record["next"]) == (cause, "requeue")
    assert record["failed_nodes"] == [f"{job.cluster.name}-{failed}"]
    wait_until(lambda: job.attempt(attempt + 1))
    assert failed not in job.nodes(attempt + 1)


def test_nodes_die(faulty_plain: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    """Peers fail on reset connections, long before Slurm marks the node as down; without a link they wait."""
    job = submitted(faulty_plain, tmp_path, every_steps=50)
    for attempt, link_up in ((0, True), (1, False)):
        job.wait_for_step(5, attempt)
        died = job.nodes(attempt)[1]
        faulty_plain.kill_node(died, link_up=link_up)
        record = job.wait_until_closed(attempt)
        assert (record["cause"], record["checkpoint_after"]) == ("lost", None)
        if link_up:
            assert record["next"] == "requeue"
            assert f"node 1 ({faulty_plain.name}-{died})" in record["message"]
        wait_until(lambda: job.attempt(attempt + 1))  # noqa: B023
        assert died not in job.nodes(attempt + 1)
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 3
    faulty_plain.start_node(died)
    assert not job.processes(died), "the job does not go on there"
    assert_the_same(job.run, reference)


def test_a_slow_link_is_no_silent_rank(faulty_plain: MiniCluster, tmp_path: Path) -> None:
    made = requeued.config(every_steps=2, step_timeout_s=12)
    made["model"] = {"kind": "tests.support.small_models:Net", "hidden": 400_000}  # 20 MB of gradients
    made["train"]["steps"] = 30
    job = Job.submit(faulty_plain, tmp_path, made)
    job.wait_for_step(4, 0)
    slow = job.nodes(0)[1]
    faulty_plain.shape(slow, 2_000_000)
    left = job.wait_until_closed(0)
    faulty_plain.shape(slow, 1_000_000_000)
    assert (left["cause"], left["next"]) == ("hung", "requeue"), left["message"]
    assert left["message"].startswith("all ranks waited for each other in a collective of step ")
    assert left["message"].endswith("the network is slow or broken")
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
