"""A node or the controller dies, or a copy of a job is given up and comes back: the run completes anyway."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.checkpoint import MANIFEST
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from tests.support import requeued
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import RANKS, Job, assert_the_same, steps_lost
from tests.support.small_disk import fill

COMMITTED = f"step-{8 * '[0-9]'}"
"""Checkpoints, as a pattern; on its way out one has another name."""
MANY = 400
"""Steps of a run that is still at it when Slurm has given its nodes up."""
EVERY = 20


@pytest.fixture
def faulty(plain: MiniCluster) -> Iterator[MiniCluster]:
    """One node more than the jobs need."""
    assert plain.nodes > RANKS
    try:
        yield plain
    finally:
        plain.mend()


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return requeued.undisturbed(tmp_path_factory.mktemp("long"), requeued.config(MANY, slow_s=0))


def submitted(
    cluster: MiniCluster, folder: Path, resources: dict[str, int] | None = None, **given: Any
) -> Job:
    made = requeued.config(**{"every_steps": EVERY, **given})
    return Job.submit(cluster, folder, made | ({"resources": resources} if resources else {}))


@pytest.mark.slow
def test_a_node_dies(faulty: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(faulty, tmp_path)
    job.wait_for_step(30)
    died = job.nodes(0)[2]
    faulty.kill_node(died)
    assert job.wait_for_end().state == "done"
    assert_started_again_without(job, died)
    assert job.attempt(0)["cause"] == "lost"
    assert_the_same(job.run, reference)


@pytest.mark.slow
@pytest.mark.timeout(900)  # Slurm starts the job elsewhere once it has given up the node
def test_node_0_is_cut_off_and_reconnects(faulty: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    """Its agent retries the requeue until the link is back. Slurm has started the job elsewhere by then."""
    job = submitted(faulty, tmp_path, slow_s=0.4)
    job.wait_for_step(25)
    cut_off = job.nodes(0)[0]
    faulty.link(cut_off, up=False)
    faulty.freeze(cut_off, only="slurmd")  # else it may end the agent before the next try
    wait_until(lambda: job.attempt(1))
    faulty.link(cut_off, up=True)
    wait_until(lambda: not ours(faulty, cut_off, job.run))
    faulty.thaw(cut_off)
    assert job.wait_for_end().state == "done"
    # Node 0 sees others end (they share a disk here), and need not learn why.
    assert job.attempt(0)["cause"] in ("lost", "preempted")
    assert_started_again_without(job, cut_off)
    assert_the_same(job.run, reference)


def assert_started_again_without(job: Job, lost: int) -> None:
    """The job had a second start, on other nodes, and no third."""
    assert len(job.attempts()) == 2
    assert lost not in job.nodes(1)
    first, second = job.attempt(0), job.attempt(1)
    assert first["job_id"] == second["job_id"]
    assert (second["cause"], second["restart"]) == ("finished", 1)
    assert steps_lost(job.run) <= EVERY, "at most what lies between two checkpoints"


@pytest.mark.slow
def test_a_node_dies_before_the_first_checkpoint(
    faulty: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    """Its peers fail on reset connections, long before Slurm marks the node as down."""
    job = submitted(faulty, tmp_path, every_steps=50)
    job.wait_for_step(5)
    died = job.nodes(0)[2]
    faulty.kill_node(died, link_up=True)
    first = job.wait_until_closed(0)
    assert (first["cause"], first["next"], first["checkpoint_after"]) == ("lost", "requeue", None)
    assert f"node 2 ({faulty.name}-{died})" in first["message"]
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
    assert died not in job.nodes(1)
    assert_the_same(job.run, reference)


@pytest.mark.slow
def test_a_restart_avoids_the_node_that_failed(
    faulty: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    """And one that failed before the newest checkpoint may be used again, as the job needs all but one."""
    job = submitted(faulty, tmp_path)
    failed = []
    for attempt in (0, 1):
        job.wait_for_step(EVERY * (2 * attempt + 1) + 5, attempt)
        failed.append(job.nodes(attempt)[1])
        os.kill(rank_on(faulty, failed[-1], job.run), signal.SIGKILL)
        ended = job.wait_until_closed(attempt)
        assert (ended["cause"], ended["failed_nodes"]) == ("killed", [f"{faulty.name}-{failed[-1]}"])
        wait_until(lambda: job.attempt(attempt + 1))  # noqa: B023
        assert failed[-1] not in job.nodes(attempt + 1)
    assert failed[0] in job.nodes(2)
    assert job.wait_for_end().state == "done"
    assert_the_same(job.run, reference)


def rank_on(cluster: MiniCluster, node: int, run: RunDir) -> int:
    """Process of the only rank on a node."""
    commands = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in ours(cluster, node, run)
    }
    (rank,) = [
        pid
        for pid, words in commands.items()
        if b"disttrain" in words and b"torch.distributed.run" not in words
    ]
    return rank


@pytest.mark.slow
def test_a_rank_is_killed_while_the_disk_is_full(
    faulty: MiniCluster, small_disk: Path, reference: RunDir
) -> None:
    job = submitted(faulty, small_disk, slow_s=0.05)
    job.wait_for_step(EVERY + 10)
    fill(small_disk / "filler")
    with requeued.nothing_starts(faulty):
        os.kill(rank_on(faulty, job.nodes(0)[1], job.run), signal.SIGKILL)
        wait_until(lambda: "Restarts=1" in faulty.ask("scontrol", "show", "job", job.id))
        assert job.attempt(0)["ended"] is None, "the disk is full"
        (small_disk / "filler").unlink()
    assert job.wait_for_end().state == "done"
    assert job.attempt(0)["cause"] == "lost", "the next start has closed it"
    assert len(job.attempts()) == 2
    assert steps_lost(job.run) <= EVERY
    assert_the_same(job.run, reference)


@pytest.mark.slow
def test_a_frozen_rank_is_named_and_the_job_goes_on(
    faulty: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    job = submitted(faulty, tmp_path, step_timeout_s=12)
    job.wait_for_step(30)
    os.kill(rank_on(faulty, job.nodes(0)[1], job.run), signal.SIGSTOP)
    wait_until(lambda: job.attempt(0).get("ended") or "no progress" in str(job.state.message))
    assert str(job.state.message).startswith("no progress: "), "before the end"
    left = job.wait_until_closed(0)
    assert (left["cause"], left["next"]) == ("hung", "requeue")
    assert left["message"].startswith("rank 1 stopped: no heartbeat for ")
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
    assert steps_lost(job.run) <= EVERY
    assert_the_same(job.run, reference)


@pytest.mark.slow
def test_a_slow_link_is_no_silent_rank(faulty: MiniCluster, tmp_path: Path) -> None:
    steps = 30
    made = requeued.config(steps, every_steps=2, slow_s=0, step_timeout_s=12)
    made["model"] = {"kind": "tests.support.small_models:Net", "hidden": 400_000}  # 20 MB of gradients
    job = Job.submit(faulty, tmp_path, made)
    job.wait_for_step(4)
    slow = job.nodes(0)[2]
    faulty.shape(slow, 2_000_000)
    left = job.wait_until_closed(0)
    faulty.shape(slow, 1_000_000_000)
    assert (left["cause"], left["next"]) == ("hung", "requeue"), left["message"]
    assert left["message"].startswith("all ranks waited for each other in a collective of step ")
    assert left["message"].endswith("the network is slow or broken")
    assert job.wait_for_end().state == "done"
    (tmp_path / "reference").mkdir()
    only_at_the_end = made | {"checkpoint": {"every_steps": steps}}
    assert_the_same(job.run, requeued.undisturbed(tmp_path / "reference", only_at_the_end))


@pytest.mark.slow
def test_the_controller_dies_and_comes_back(faulty: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    job = submitted(faulty, tmp_path)
    job.wait_for_step(20)
    faulty.kill_controller()
    job.wait_for_step(60)
    faulty.start_controller()
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 1
    assert steps_lost(job.run) == 0
    assert "Restarts=0" in faulty.ask("scontrol", "show", "job", job.id)
    assert_the_same(job.run, reference)


@pytest.mark.slow
@pytest.mark.timeout(900)  # Slurm waits for the frozen srun before it starts the job again
@pytest.mark.parametrize(
    ("nodes", "frozen"),
    [
        pytest.param(1, False, id="two whole copies train at once"),
        pytest.param(RANKS, True, id="rank 0 wakes and its peers are gone"),
    ],
)
def test_a_copy_that_was_given_up_keeps_off(
    faulty: MiniCluster, tmp_path: Path, long_reference: RunDir, nodes: int, frozen: bool
) -> None:
    """The first node of a job stops answering, so Slurm starts the job without it. It lives on, or again."""
    shape = {"nodes": nodes, "gpus_per_node": RANKS // nodes}
    job = submitted(faulty, tmp_path, steps=MANY, slow_s=0.15, resources=shape)
    job.wait_for_step(30)
    given_up = job.nodes(0)[0]
    faulty.freeze(given_up, only="slurmd")
    for pid in ours(faulty, given_up, job.run) if frozen else []:
        os.kill(pid, signal.SIGSTOP)
    if frozen:  # srun, too: on its return it ends its step, by a number that the new start may use
        faulty.freeze(given_up, only="srun")
        faulty.freeze(given_up, only="slurm_script")

    def started_again() -> bool:
        faulty.resume_drained()  # the other nodes wait for the frozen srun
        return bool(job.attempt(1))

    wait_until(started_again)
    with nothing_shared_is_written_by(job.run, attempt=0):
        if frozen:
            job.wait_for_step(50, attempt=1)
            faulty.thaw(given_up)
        # With slurmd frozen nobody ends it: it has to see for itself.
        wait_until(lambda: not ours(faulty, given_up, job.run))
        left = state_of(job.run.attempt(0).path)
        faulty.thaw(given_up)
        assert job.wait_for_end().state == "done"
    assert state_of(job.run.attempt(0).path) == left, "nothing more came from the old copy, not even there"
    assert given_up not in job.nodes(1)
    assert len(job.attempts()) == 2
    assert (read_json(job.run.done)["attempt"], job.attempt(1)["cause"]) == (1, "finished")
    assert job.attempt(0)["cause"] == "lost"
    assert not job.run.failed.exists()
    assert_the_same(job.run, long_reference)


def ours(cluster: MiniCluster, node: int, run: RunDir) -> list[int]:
    """Agents, torchruns and ranks of a run on a node."""
    words = {pid: Path(f"/proc/{pid}/cmdline") for pid in cluster.processes(node)}
    found = []
    for pid, path in words.items():
        with suppress(OSError):
            command = path.read_bytes().decode(errors="replace").split("\0")
            if str(run.path) in command and "srun" not in command[0]:
                found.append(pid)
    return found


@contextmanager
def nothing_shared_is_written_by(run: RunDir, attempt: int) -> Iterator[None]:
    """Look at the files that attempts share, again and again, for one that this attempt wrote meanwhile."""
    before, seen, over = written_by(run, attempt), set(), threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            seen.update(written_by(run, attempt) - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    assert not seen


def written_by(run: RunDir, attempt: int) -> set[tuple[str, int]]:
    """Files outside of any attempt's folder that say that they are of this attempt, with their times."""
    found = set()
    paths = [
        run.metrics,
        run.progress,
        run.done,
        run.failed,
        *run.checkpoints.glob(f"{COMMITTED}/{MANIFEST}"),
    ]
    for path in paths:
        with suppress(FileNotFoundError), open(path) as file:  # another may replace it in this moment
            if json.load(file).get("attempt") == attempt:
                found.add((str(path), os.fstat(file.fileno()).st_mtime_ns))
    mark = f".a{attempt:03d}.tmp"
    found |= {(str(path), 0) for path in run.checkpoints.glob(f"*{mark}")}
    return found


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of every file below it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
