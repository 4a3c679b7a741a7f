"""The cause of a start in which a node recorded no exit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import Attempt, RunDir
from jobs.node import allocation, ending, peers
from jobs.node.allocation import AllocationFacts, NodeContext
from jobs.node.ending import explain_silence
from jobs.node.torchrun import CANCELLED_BY_SCHEDULER, TorchrunResult

HOSTS = ("n1", "n2", "n3")
FAILED = TorchrunResult(code=1)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_LATE_RECORD_S", 0.0)
    monkeypatch.setattr(ending, "_QUERY_INTERVAL_S", 0.0)
    monkeypatch.setattr(ending, "_BEYOND_TIMEOUT_S", 0.0)
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


@pytest.fixture
def terminated() -> Iterator[None]:
    """A pending SIGTERM, which the agent has blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    yield
    signal.sigtimedwait([signal.SIGTERM], 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def slurm(
    *,
    responds: bool = False,
    timeout_s: float = 60.0,
    restarts: int = 0,
    down: str = "",
    end_cause: Literal["timeout", "lost"] | None = None,
) -> Mock:
    facts = AllocationFacts(running=False, restarts=restarts, end=None, end_cause=end_cause)
    job = Mock(restart=0, facts=Mock(return_value=facts), nodes_down=Mock(return_value=down.split()))
    job.node_responds.return_value = responds
    job.node_timeout_s.return_value = timeout_s
    return job


def explain(attempt: Attempt, job: Mock, result: TorchrunResult = FAILED) -> TorchrunResult:
    run = RunDir(attempt.path.parent.parent)
    return explain_silence(NodeContext(run, 0, 0, HOSTS, job), attempt, result)


def test_a_node_whose_agent_alone_died_is_not_waited_for(attempt: Attempt) -> None:
    found = explain(attempt, slurm(responds=True))
    assert (found.cause, found.requeued) == ("lost", False)
    assert str(found.message).startswith("node 2 (n3) recorded no exit")


@pytest.mark.parametrize(
    ("message", "responds", "cause"),
    [
        ("index out of range", True, None),
        ("index out of range", False, "lost"),
        ("Connection reset by peer", True, "lost"),
    ],
    ids=["late record", "dead node", "lost peer"],
)
def test_the_error_of_a_rank_is_kept_where_a_silent_node_responds(
    attempt: Attempt, message: str, responds: bool, cause: str | None
) -> None:
    error = {"rank": 0, "time": 1.0, "kind": "RuntimeError", "message": message, "cause": "crashed"}
    write_json(attempt.error(0), error)
    assert explain(attempt, slurm(responds=responds, timeout_s=0.05)).cause == cause


@pytest.mark.parametrize(("code", "cause"), [(-9, None), (-6, "lost"), (-15, "lost")])
def test_a_killed_rank_is_the_cause_where_a_silent_node_responds(
    attempt: Attempt, code: int, cause: str | None
) -> None:
    """Its peer saw the broken connection. SIGABRT and SIGTERM may follow the loss of a peer."""
    error = {"rank": 0, "time": 1.0, "kind": "RuntimeError", "message": "Connection reset by peer"}
    write_json(attempt.error(0), error | {"cause": "crashed"})
    ended = f"  time : 2026-01-01_00:00:00\n  rank : 1 (local_rank: 0)\n  exitcode : {code} (pid: 7)\n"
    write_text(attempt.node_log(1), f"Root Cause (first observed failure):\n{ended}")
    assert explain(attempt, slurm(responds=True, timeout_s=0.05)).cause == cause


@pytest.mark.parametrize(
    ("restarts", "down", "cause", "message"),
    [
        (1, "n3", "lost", "node 2 (n3) is down"),
        (1, "", "lost", "node 2 (n3) recorded no exit"),
        (0, "n3", "lost", "node 2 (n3) is down"),
        (0, "n9", "cancelled", CANCELLED_BY_SCHEDULER),
    ],
    ids=["requeued", "requeued, and no node is listed", "not requeued", "cancelled"],
)
def test_the_wait_ends_with_the_job(
    attempt: Attempt, terminated: None, restarts: int, down: str, cause: str, message: str
) -> None:
    found = explain(attempt, slurm(restarts=restarts, down=down))
    assert (found.cause, found.message, found.requeued) == (cause, message, restarts == 1)
    assert found.lost_hosts == (() if cause == "cancelled" else tuple(down.split()))


@pytest.mark.parametrize(("end_cause", "left_s"), [("timeout", 3600), (None, 1)], ids=["state", "clock"])
def test_an_end_at_the_time_limit_is_a_timeout(
    attempt: Attempt, terminated: None, end_cause: Literal["timeout"] | None, left_s: float
) -> None:
    result = TorchrunResult(1, job_end=time.time() + left_s)
    found = explain(attempt, slurm(end_cause=end_cause), result)
    assert (found.cause, found.message) == ("timeout", "the scheduler ended the job at its time limit")


def test_a_killed_batch_shell_loses_the_job_and_no_node(attempt: Attempt, terminated: None) -> None:
    found = explain(attempt, slurm(end_cause="lost"))
    assert (found.cause, found.lost_hosts) == ("lost", ())
    assert "batch shell" in str(found.message)


@pytest.mark.parametrize("left_s", [-3600, 0, 60, 3600])
def test_a_request_to_stop_remains_the_cause_where_a_record_is_late(attempt: Attempt, left_s: float) -> None:
    write_json(attempt.stop, {"cause": "preempted", "time": 0.0})
    job = slurm(responds=True, timeout_s=0.05)
    result = TorchrunResult(1, job_end=time.time() + left_s)
    assert explain(attempt, job, result) == result
    assert job.node_responds.called


@pytest.mark.parametrize(
    ("restarts", "end_cause", "cause"),
    [(1, None, None), (0, "timeout", None), (0, None, "cancelled")],
    ids=["requeued", "time limit", "cancelled"],
)
def test_a_request_to_stop_remains_the_cause_where_the_grace_ends_during_the_wait(
    attempt: Attempt,
    terminated: None,
    restarts: int,
    end_cause: Literal["timeout"] | None,
    cause: str | None,
) -> None:
    write_json(attempt.stop, {"cause": "preempted", "time": 0.0})
    found = explain(attempt, slurm(restarts=restarts, end_cause=end_cause))
    assert (found.cause, found.requeued, found.lost_hosts) == (cause, restarts == 1, ())


def test_the_wait_for_a_dead_node_ends_before_the_time_of_the_job(attempt: Attempt) -> None:
    result = TorchrunResult(1, job_end=time.time() + ending._BEFORE_END_S)
    job = slurm(timeout_s=5)
    assert explain(attempt, job, result).cause == "lost"
    job.node_responds.assert_called_with("n3")


def test_a_dead_node_that_the_scheduler_does_not_notice_is_lost_after_its_timeout(attempt: Attempt) -> None:
    job = slurm(timeout_s=0.05)
    assert explain(attempt, job).cause == "lost"
    assert job.node_responds.call_count > 1


def test_a_late_record_leaves_the_failure_as_it_is(attempt: Attempt) -> None:
    job = slurm()

    def responds(host: str) -> bool:
        assert host == "n3"
        peers.record_node_exit(attempt, 2, 1)
        return False

    job.node_responds = responds
    assert explain(attempt, job) == FAILED
    assert explain(attempt, slurm(timeout_s=0)) == FAILED


def test_a_superseded_start_does_not_wait(attempt: Attempt) -> None:
    RunDir(attempt.path.parent.parent).attempt(1).path.mkdir()
    assert explain(attempt, slurm()) == FAILED
