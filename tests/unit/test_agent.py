"""Errors of an agent: before the launch they prevent it, later they are no errors of the start."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import attempt as attempts
from jobs.core import journal
from jobs.core.classify_exit import ExitStatus
from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE, EXIT_DONE, EXIT_LAUNCH_FAILED
from jobs.node import agent, ending, launch, peers
from jobs.node.allocation import AllocationFacts, JobEnded, NodeContext
from jobs.node.torchrun import TorchrunResult

FULL = OSError(28, "No space left on device")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeContext]:
    """Node 0 of a job with an open attempt; this process keeps its signals."""
    run = RunDir(tmp_path / "sweep" / "run")
    write_json(run.attempt(0).record, {"attempt": 0, "submission": 0, "ended": None, "nodes": ["a", "b"]})
    monkeypatch.setattr(agent.processes, "become_subreaper", lambda: None)
    monkeypatch.setattr(agent, "redirect_output", lambda path: None)
    monkeypatch.setattr(agent, "_claim", lambda node: run.attempt(0))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield NodeContext(run, 0, 0, ["a", "b"], Mock())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raising(error: Exception) -> Callable[..., Any]:
    return Mock(side_effect=error)


@pytest.mark.parametrize("error", [FULL, KeyError("cause")], ids=["full disk", "programming error"])
def test_an_error_after_the_ranks_have_run_is_no_error_of_the_start(
    node: NodeContext,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(agent, "launch", lambda node, attempt: TorchrunResult(1, "cancelled"))
    monkeypatch.setattr(ending, "close_attempt", raising(error))
    with pytest.raises(type(error)):
        agent.run_agent(node)
    assert "cannot start" not in capsys.readouterr().out


@pytest.mark.parametrize("error", [FULL, KeyError("cause")], ids=["full disk", "programming error"])
def test_an_error_while_the_ranks_run_is_no_error_of_the_start(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(launch, "_prepare", Mock())
    monkeypatch.setattr(launch, "run_torchrun", raising(error))
    with pytest.raises(type(error)):
        launch.launch(node, node.run.attempt(0))


@pytest.mark.parametrize(
    ("error", "says", "traceback"),
    [(FULL, "cannot start: the disk is full\n", False), (KeyError("job"), "cannot start: KeyError", True)],
)
def test_an_error_before_the_launch_is_one_line_and_a_programming_error_has_its_traceback(
    node: NodeContext,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
    traceback: bool,
) -> None:
    monkeypatch.setattr(launch, "_prepare", raising(error))
    assert launch.launch(node, node.run.attempt(0)).code == EXIT_LAUNCH_FAILED
    written = capsys.readouterr()
    assert says in written.out
    assert ("Traceback" in written.err) == traceback
    monkeypatch.setattr(launch, "_prepare", raising(JobEnded("ended", 1)))
    with pytest.raises(JobEnded):
        launch.launch(node, node.run.attempt(0))


def test_a_full_disk_at_the_claim_is_an_error_of_the_start(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "_claim", raising(FULL))
    assert agent.run_agent(node) == EXIT_LAUNCH_FAILED
    assert "cannot start: the disk is full\n" in capsys.readouterr().out


def test_no_room_for_an_exit_code_costs_a_line_in_the_log(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "record_node_exit", raising(FULL))
    monkeypatch.setattr(agent, "launch", lambda node, attempt: TorchrunResult(1))
    assert agent._run(node, node.run.attempt(0)).code == 1
    assert "exit code 1 is not recorded" in capsys.readouterr().out


def test_no_room_to_close_an_attempt_prevents_no_requeue(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt: Attempt = node.run.attempt(0)
    monkeypatch.setattr(attempts, "write_json", raising(FULL))
    status = attempts.close_attempt(node.run, attempt, {0: 1}, external_cause="preempted")
    assert status.cause == "preempted"
    assert "not recorded: the disk is full" in str(status.message)
    attempts.record_requeue_failure(node.run, attempt)


def test_a_launch_that_failed_on_node_0_is_not_explained_by_silent_nodes(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Mock(return_value=ExitStatus("launch_failed", None))
    monkeypatch.setattr(agent, "launch", lambda node, attempt: TorchrunResult(EXIT_LAUNCH_FAILED))
    monkeypatch.setattr(ending, "explain_silence", raising(AssertionError("torchrun has not run")))
    monkeypatch.setattr(ending, "close_attempt", close)
    assert agent.run_agent(node) == EXIT_LAUNCH_FAILED
    assert close.call_args.args[2] == {0: EXIT_LAUNCH_FAILED}


def test_a_failure_beside_a_silent_node_ends_as_the_wait_for_that_node_explains(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of node 0 failed without a cause from outside, and node 1 recorded no exit."""
    attempt, failed = node.run.attempt(0), TorchrunResult(1)
    write_json(node.run.run_json, {"config": {"job": {"max_attempts": 2}}})
    explain = Mock(return_value=TorchrunResult(1, "lost", "node 1 (b) is down", lost_hosts=("b",)))
    monkeypatch.setattr(agent, "launch", lambda node, attempt: failed)
    monkeypatch.setattr(ending, "explain_silence", explain)
    agent.run_agent(node)
    assert explain.call_count == 1
    assert explain.call_args.args == (node, attempt, failed)
    record = read_json(attempt.record)
    assert (record["cause"], record["failed_nodes"]) == ("lost", ["b"])
    assert record["message"].startswith("node 1 (b) is down")


@pytest.mark.parametrize("result", [TorchrunResult(0), TorchrunResult(1, "preempted")])
def test_no_silent_node_is_waited_for_where_the_cause_is_known(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, result: TorchrunResult
) -> None:
    close = Mock(return_value=ExitStatus("preempted", None))
    monkeypatch.setattr(agent, "launch", lambda node, attempt: result)
    monkeypatch.setattr(ending, "poll_until", Mock())
    monkeypatch.setattr(ending, "explain_silence", raising(AssertionError("the cause is known")))
    monkeypatch.setattr(ending, "close_attempt", close)
    agent.run_agent(node)
    assert close.call_args.kwargs["external_cause"] == result.cause


def test_node_0_counts_its_own_exit_that_could_not_be_recorded(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = node.run.attempt(0)
    peers.record_node_exit(attempt, 1, 0)
    close = Mock(return_value=ExitStatus("finished", None))
    monkeypatch.setattr(agent, "launch", lambda node, attempt: TorchrunResult(0))
    monkeypatch.setattr(peers, "record_node_exit", raising(FULL))
    monkeypatch.setattr(ending, "poll_until", lambda done, within_s, allocation: waits.append(done()))
    monkeypatch.setattr(ending, "close_attempt", close)
    waits: list[bool | None] = []
    assert agent.run_agent(node) == EXIT_DONE
    assert waits == [True], "all nodes have an exit code at the first poll"
    assert close.call_args.args[2] == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("cause", "within_s"), [(None, peers.NODE_EXITS_TIMEOUT_S), ("preempted", peers.ENDING_TIMEOUT_S)]
)
def test_node_0_waits_only_briefly_for_other_nodes_once_the_job_ends(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, cause: str | None, within_s: float
) -> None:
    poll = Mock()
    monkeypatch.setattr(ending, "poll_until", poll)
    monkeypatch.setattr(agent, "launch", lambda node, attempt: TorchrunResult(0, cause))
    monkeypatch.setattr(ending, "close_attempt", Mock(return_value=ExitStatus("finished", None)))
    assert agent.run_agent(node) == EXIT_DONE
    assert poll.call_args.args[1] == within_s


def test_the_end_of_the_job_ends_the_wait_for_other_nodes(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched(node: NodeContext, attempt: Attempt) -> TorchrunResult:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # blocked by the agent
        return TorchrunResult(0)

    monkeypatch.setattr(peers, "NODE_EXITS_TIMEOUT_S", 2.0)
    monkeypatch.setattr(agent, "launch", launched)
    close = Mock(return_value=ExitStatus("finished", None))
    monkeypatch.setattr(ending, "close_attempt", close)
    node.allocation.facts.return_value = AllocationFacts(False, 0, None)  # type: ignore[union-attr]
    node.allocation.restart = 0  # type: ignore[union-attr]
    agent.run_agent(node)
    assert signal.sigtimedwait([signal.SIGTERM], 0) is not None, "still pending"
    assert close.call_count == 1
    assert node.allocation.facts.call_count == 1  # type: ignore[union-attr]


def test_no_rank_starts_after_a_set_up_of_the_node_that_exited(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(node.run.run_json, {"config": Config().as_dict()})
    monkeypatch.setattr(launch.run_code, "code_problem", lambda run, record: None)
    monkeypatch.setenv(SETUP_EXIT_VARIABLE, "3")
    assert launch.launch(node, node.run.attempt(0)).code == EXIT_LAUNCH_FAILED
    host = launch.processes.host()
    assert f"cannot start: node_setup exited with code 3 on {host}; " in capsys.readouterr().out


def test_the_next_start_excludes_the_nodes_that_failed(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = Mock()
    monkeypatch.setattr(ending, "failed_hosts", lambda run, attempt: (["b"], ["a", "b"]))
    context = dataclasses.replace(node, allocation=allocation)
    assert ending.request_requeue(context, node.run.attempt(0), 0.0) == EXIT_DONE
    allocation.exclude.assert_called_once_with(["b"], ["a", "b"], node.run.script)


def claimed(node: NodeContext, restart: int) -> Attempt:
    """The attempt that this start of the job claims."""
    if not restart:
        journal.write_intent(node.run, {"cluster": "slurm"})
    number = journal.claim(node.run, 0, process={}, job_id="7", code_hash="", restart=restart)
    assert number is not None
    attempt = node.run.attempt(number)
    write_json(attempt.record, {"attempt": number, "submission": 0, "ended": None, "nodes": ["a", "b"]})
    return attempt


def test_a_start_that_was_replaced_during_the_requeue_stops_trying(node: NodeContext) -> None:
    """Node 0 was cut off from the network, and the scheduler has started the job elsewhere."""
    attempt, answers = claimed(node, 0), []

    def requeue(until: float, is_current: Callable[[], bool]) -> bool:
        answers.append(is_current())
        claimed(node, 1)
        answers.append(is_current())
        return False

    node.allocation.requeue = requeue  # type: ignore[union-attr, method-assign]
    assert ending.request_requeue(node, attempt, 0.0) == EXIT_DO_NOT_REQUEUE
    assert answers == [True, False]
    assert "message" not in read_json(attempt.record), "it is not recorded as a requeue that was refused"


def test_a_start_that_was_replaced_while_it_ran_closes_nothing(
    node: NodeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = claimed(node, 0)
    monkeypatch.setattr(agent, "_claim", lambda node: attempt)
    monkeypatch.setattr(ending, "explain_silence", lambda node, attempt, result: result)
    monkeypatch.setattr(ending, "close_attempt", raising(AssertionError("the new start closes its own")))

    def launched(node: NodeContext, attempt: Attempt) -> TorchrunResult:
        claimed(node, 1)
        return TorchrunResult(1)

    monkeypatch.setattr(agent, "launch", launched)
    assert agent.run_agent(node) == EXIT_DO_NOT_REQUEUE


@pytest.mark.parametrize(("cause", "code"), [("finished", EXIT_DONE), ("lost", EXIT_DO_NOT_REQUEUE)])
def test_other_nodes_of_a_revoked_start_exit_as_node_0(cause: str, code: int) -> None:
    assert agent._not_claimed([{"by": "revoked", "cause": cause, "message": ""}]) == code
