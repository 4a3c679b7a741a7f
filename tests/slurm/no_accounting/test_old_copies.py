"""Slurm gives up the node of a job and starts the job elsewhere; the old copy lives on or returns, and keeps
off what both share."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from disttrain.records.checkpoint import MANIFEST
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import RANKS, Job, assert_the_same, submitted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # Slurm starts the job once it has given up the node

COMMITTED = f"step-{8 * '[0-9]'}"
"""Checkpoints, as a pattern; on its way out one has another name."""


def test_node_0_is_cut_off_and_reconnects(
    faulty_plain: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    """Its agent retries the requeue until the link is back. Slurm has started the job elsewhere by then."""
    job = submitted(faulty_plain, tmp_path)
    job.wait_for_slow_steps(0)
    cut_off = job.nodes(0)[0]
    faulty_plain.link(cut_off, up=False)
    faulty_plain.freeze(cut_off, only="slurmd")  # else it may end the agent before the next try
    wait_until(lambda: job.attempt(1))
    faulty_plain.link(cut_off, up=True)
    wait_until(lambda: not job.processes(cut_off))
    faulty_plain.thaw(cut_off)
    # Node 0 sees others end (they share a disk here), and need not learn why.
    assert_done_elsewhere(job, cut_off, reference, "lost", "preempted")


@pytest.mark.parametrize(
    ("nodes", "frozen"),
    [
        pytest.param(1, False, id="two whole copies train at once"),
        pytest.param(RANKS, True, id="rank 0 wakes and its peers are gone"),
    ],
)
def test_a_copy_that_was_given_up_keeps_off(
    faulty_plain: MiniCluster, tmp_path: Path, reference: RunDir, nodes: int, frozen: bool
) -> None:
    shape = {"nodes": nodes, "gpus_per_node": RANKS // nodes}
    job = submitted(faulty_plain, tmp_path, shape, slow_s=3.0)  # at it long after Slurm has given up the node
    job.wait_for_slow_steps(0)
    given_up = job.nodes(0)[0]
    faulty_plain.freeze(given_up, only="slurmd")
    for pid in job.processes(given_up) if frozen else []:
        os.kill(pid, signal.SIGSTOP)
    if frozen:  # srun, too: on its return it ends its step, by a number that the new start may use
        faulty_plain.freeze(given_up, only="srun")
        faulty_plain.freeze(given_up, only="slurm_script")

    def started_again() -> bool:
        faulty_plain.resume_drained()  # the other nodes wait for the frozen srun
        return bool(job.attempt(1))

    wait_until(started_again)
    with nothing_shared_is_written_by(job.run, attempt=0):
        if frozen:
            job.wait_for_slow_steps(1)
            faulty_plain.thaw(given_up)
        # With slurmd frozen nobody ends it: it has to see for itself.
        wait_until(lambda: not job.processes(given_up))
        left = state_of(job.run.attempt(0).path)
        faulty_plain.thaw(given_up)
        job.wait_for_end()
    assert state_of(job.run.attempt(0).path) == left, "nothing more came from the old copy, not even there"
    assert read_json(job.run.done)["attempt"] == 1
    assert not job.run.failed.exists()
    assert_done_elsewhere(job, given_up, reference, "lost")


def assert_done_elsewhere(job: Job, lost: int, reference: RunDir, *causes: str) -> None:
    """The job had a second start, on other nodes, and no third."""
    assert job.wait_for_end().state == "done"
    assert len(job.attempts()) == 2
    assert lost not in job.nodes(1)
    first, second = job.attempt(0), job.attempt(1)
    assert first["job_id"] == second["job_id"]
    assert first["cause"] in causes
    assert (second["cause"], second["restart"]) == ("finished", 1)
    assert_the_same(job.run, reference)


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
    manifests = run.checkpoints.glob(f"{COMMITTED}/{MANIFEST}")
    for path in (run.metrics, run.progress, run.done, run.failed, *manifests):
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
