"""The cause of a start in which a node recorded no exit."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import Attempt, RunDir
from jobs.node import allocation, ending, peers
from jobs.node.allocation import AllocationFacts, NodeContext
from jobs.node.torchrun import TorchrunResult

HOSTS = ("n1", "n2", "n3")
FAILED = TorchrunResult(code=1)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LATE_RECORD_S", "_BEYOND_TIMEOUT_S"):
        monkeypatch.setattr(ending, name, 0.0)
    monkeypatch.setattr(ending, "_LEAST_WAIT_S", 0.01)
    monkeypatch.setattr(allocation, "_POLL_S", 0.001)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """An attempt on three nodes, of which the last has recorded no exit."""
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    for node in (0, 1):
        peers.record_node_exit(attempt, node, 1)
    return attempt


def slurm(
    *, responds: bool = False, timeout_s: float = 60.0, restarts: int = 0, down: str = "",
    end_cause: Any = None,
) -> Mock:  # fmt: skip
    facts = AllocationFacts(running=False, restarts=restarts, end=None, end_cause=end_cause)
    job = Mock(restart=0, facts=Mock(return_value=facts), nodes_down=Mock(return_value=down.split()))
    job.node_responds.return_value = responds
    job.node_timeout_s.return_value = timeout_s
    return job


def explain(
    attempt: Attempt, job: Mock, *, left_s: float | None = None, is_ended: bool = False
) -> TorchrunResult:
    """`left_s`: of the time of the job. `is_ended`: the scheduler has sent SIGTERM."""
    result = TorchrunResult(1, job_end=None if left_s is None else time.time() + left_s)
    node = NodeContext(RunDir(attempt.path.parent.parent), 0, 0, HOSTS, job)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        if is_ended:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return ending.explain_silence(node, attempt, result)
    finally:
        signal.sigtimedwait([signal.SIGTERM], 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    ("message", "code", "responds", "cause"),
    [
        (None, None, True, "lost"),  # the agent alone died: nothing else failed
        ("index out of range", None, True, None),  # a late record
        ("index out of range", None, False, "lost"),
        ("Connection reset by peer", None, True, "lost"),
        ("Connection reset by peer", -9, True, None),  # its peer saw the broken connection
        ("Connection reset by peer", -6, True, "lost"),  # as SIGTERM, by the loss of a peer
    ],
)
def test_a_failure_of_a_rank_is_the_cause_where_a_silent_node_responds(
    message, code, responds, cause, attempt
):
    error = {"rank": 0, "time": 1.0, "kind": "RuntimeError", "message": message, "cause": "crashed"}
    if message:
        write_json(attempt.error(0), error)
    if code:
        ended = f"  time : 2026-01-01_00:00:00\n  rank : 1 (local_rank: 0)\n  exitcode : {code} (pid: 7)\n"
        write_text(attempt.node_log(1), f"Root Cause (first observed failure):\n{ended}")
    found = explain(attempt, slurm(responds=responds, timeout_s=0.05))
    assert (found.cause, found.requeued) == (cause, False)
    assert cause is None or str(found.message).startswith("node 2 (n3) recorded no exit within ")


STOPPED = {"stop": True}
LIMIT = "the scheduler ended the job at its time limit"


@pytest.mark.parametrize(
    ("about", "cause", "message", "hosts"),
    [
        ({"restarts": 1, "down": "n3"}, "lost", "node 2 (n3) is down", ("n3",)),
        ({"restarts": 1}, "lost", "node 2 (n3) recorded no exit", ()),
        ({"down": "n3"}, "lost", "node 2 (n3) is down", ("n3",)),
        ({"down": "n9"}, "cancelled", "the scheduler ended the job: by scancel", ()),
        ({"end_cause": "timeout", "left_s": 3600}, "timeout", LIMIT, ()),
        ({"left_s": 1}, "timeout", LIMIT, ()),
        ({"end_cause": "lost"}, "lost", "the batch shell of the job ended", ()),
        # a request to stop stays the cause where its grace ends during the wait
        (STOPPED | {"restarts": 1}, None, "", ()),
        (STOPPED | {"end_cause": "timeout"}, None, "", ()),
        (STOPPED, "cancelled", "the scheduler ended the job: by scancel", ()),
    ],
)
def test_the_wait_ends_with_the_job(about, cause, message, hosts, attempt):
    if about.get("stop"):
        write_json(attempt.stop, {"cause": "preempted", "time": 0.0})
    job = slurm(**{name: value for name, value in about.items() if name not in ("stop", "left_s")})
    found = explain(attempt, job, left_s=about.get("left_s"), is_ended=True)
    assert (found.cause, found.lost_hosts) == (cause, hosts)
    assert found.requeued == (about.get("restarts") == 1)
    assert (found.message or "").startswith(message)


@pytest.mark.parametrize("left_s", [-3600, 3600])
def test_a_request_to_stop_remains_the_cause_where_a_record_is_late(left_s, attempt):
    write_json(attempt.stop, {"cause": "preempted", "time": 0.0})
    job = slurm(responds=True, timeout_s=0.05)
    assert explain(attempt, job, left_s=left_s).cause is None
    assert job.node_responds.called


@pytest.mark.parametrize(("timeout_s", "left_s"), [(600.0, ending._BEFORE_END_S), (0.05, None)])
def test_a_dead_node_is_lost_after_its_timeout_or_before_the_end_of_the_job(timeout_s, left_s, attempt):
    job = slurm(timeout_s=timeout_s)
    assert explain(attempt, job, left_s=left_s).cause == "lost"
    job.node_responds.assert_called_with("n3")


def test_a_late_record_leaves_the_failure_as_it_is(attempt):
    job = slurm()
    job.node_responds.side_effect = lambda host: peers.record_node_exit(attempt, 2, 1)
    assert explain(attempt, job) == FAILED


def test_a_superseded_start_does_not_wait(attempt):
    RunDir(attempt.path.parent.parent).attempt(1).path.mkdir()
    assert explain(attempt, slurm()) == FAILED
