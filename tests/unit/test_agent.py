"""The agent of a node: its claim, errors before and after the launch, the end of a start, and the requeue.

Agents as processes are in tests/multiprocess/test_agent.py and test_job.py.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import journal
from jobs.core.attempt import open_attempt
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE, EXIT_DONE, EXIT_LAUNCH_FAILED
from jobs.node import agent, ending, launch, peers
from jobs.node.agent import run_agent
from jobs.node.allocation import Allocation, AllocationFacts, NodeContext
from jobs.node.torchrun import TorchrunResult

Launched = Callable[[Attempt], TorchrunResult]
DISK = OSError(28, "No space left on device")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeContext]:
    """Node 0 of a planned run on two nodes, at its first start; this process keeps its signals and output."""
    run = RunDir(tmp_path / "sweep" / "run")
    fields = {"job": {"rendezvous_timeout_s": 1.0}, "resources": {"nodes": 2}}
    write_json(run.run_json, {"cluster": "slurm", "config": Config.model_validate(fields).as_dict()})
    journal.write_intent(run, {"cluster": "slurm"})
    monkeypatch.setattr(agent.processes, "become_subreaper", lambda: None)
    monkeypatch.setattr(agent, "redirect_output", lambda path: None)
    allocation = Mock(spec=Allocation, job_id="7", restart=0)
    allocation.facts.return_value = AllocationFacts(running=True, restarts=0, end=None)
    allocation.node_timeout_s.return_value = 0.0
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield NodeContext(run, 0, 0, ["a", "b"], allocation)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(node: NodeContext, restart: int = 0, job_id: str = "7") -> Attempt:
    """Another start of the job, or another job, opens its attempt."""
    attempt = open_attempt(node.run, 0, cluster="slurm", job_id=job_id, nodes=node.hosts, restart=restart)
    assert attempt is not None
    return attempt


@pytest.fixture
def run(node: NodeContext, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """`run(result or function of the attempt, node)`: an agent whose ranks end so. Its exit code, and the
    record of its attempt."""

    def act(result: TorchrunResult | Launched, node: NodeContext = node) -> tuple[int, dict[str, Any]]:
        started: list[Attempt] = []

        def launched(_: NodeContext, attempt: Attempt) -> TorchrunResult:
            started.append(attempt)
            return result(attempt) if callable(result) else result

        monkeypatch.setattr(agent, "launch", launched)
        return run_agent(node), read_json(started[0].record) if started else {}

    return act


Run = Callable[..., tuple[int, dict[str, Any]]]
OK, FAILED = TorchrunResult(0), TorchrunResult(1)
PREEMPTED = TorchrunResult(0, "preempted")


def raise_(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("error", [DISK, KeyError("cause")])
def test_an_error_after_the_launch_is_no_error_of_the_start(error, node, run, monkeypatch, capfd):
    with pytest.raises(type(error)):
        run(lambda attempt: raise_(error))
    monkeypatch.setattr(launch, "_prepare", Mock())
    monkeypatch.setattr(launch, "run_torchrun", lambda *_: raise_(error))
    with pytest.raises(type(error)):
        launch.launch(node, node.run.attempt(0))
    assert "cannot start" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("run_json", "reason", "traceback"),
    [(None, "cannot start: ", False), ("{", "cannot start: ", False), ("{}", "cannot start: KeyError", True)],
)
def test_an_error_before_the_launch_is_one_line_and_a_programming_error_has_its_traceback(
    run_json, reason, traceback, node, capsys
):
    node.run.run_json.unlink()
    if run_json:
        node.run.run_json.write_text(run_json)
    assert launch.launch(node, node.run.attempt(0)).code == EXIT_LAUNCH_FAILED
    written = capsys.readouterr()
    assert reason in written.out
    assert ("Traceback" in written.err) == traceback


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_bad_run_json_revokes_the_submission_unless_the_run_was_deleted(is_deleted, node, run, capsys):
    node.run.run_json.write_text("{")
    if is_deleted:
        node.run.run_json.unlink()
    assert run(OK) == (EXIT_LAUNCH_FAILED, {})
    assert "cannot start: " in capsys.readouterr().out
    claims = journal.entry(node.run, 0).claims()
    assert [each["cause"] for each in claims] == ([] if is_deleted else ["launch_failed"])


@pytest.mark.parametrize(
    ("result", "code", "cause"),
    [
        (TorchrunResult(EXIT_LAUNCH_FAILED), EXIT_LAUNCH_FAILED, "launch_failed"),
        (TorchrunResult(1, "preempted"), EXIT_DONE, "preempted"),
        (PREEMPTED, EXIT_DONE, "preempted"),
    ],
)
def test_no_silent_node_is_explained_where_the_cause_is_known(result, code, cause, node, run, monkeypatch):
    monkeypatch.setattr(peers, "ENDING_TIMEOUT_S", 0.01)
    exit_code, record = run(result)
    assert (exit_code, record["cause"], record["exit_codes"]) == (code, cause, {"0": result.code})
    assert not node.allocation.node_responds.called


def test_a_failure_beside_a_silent_node_ends_as_the_wait_for_that_node_explains(node, run, monkeypatch):
    monkeypatch.setattr(ending, "_BEYOND_TIMEOUT_S", 0.0)
    monkeypatch.setattr(ending, "_LATE_RECORD_S", 0.0)
    code, record = run(FAILED)
    assert (code, record["cause"], record["failed_nodes"], record["next"]) == (
        EXIT_DONE,
        "lost",
        ["b"],
        "requeue",
    )
    node.allocation.exclude.assert_called_once_with(["b"], ["b"], node.run.script)


@pytest.mark.parametrize(
    ("result", "within_s"), [(OK, peers.NODE_EXITS_TIMEOUT_S), (PREEMPTED, peers.ENDING_TIMEOUT_S)]
)
def test_node_0_waits_only_briefly_for_other_nodes_once_the_job_ends(result, within_s, run, monkeypatch):
    poll = Mock()
    monkeypatch.setattr(ending, "poll_until", poll)
    run(result)
    assert poll.call_args.args[1] == within_s


def test_an_exit_that_could_not_be_recorded_counts(node, run, capsys):
    def launched(attempt: Attempt) -> TorchrunResult:
        attempt.exits.rmdir()
        attempt.exits.touch()
        return OK

    _, record = run(launched, replace(node, hosts=["a"]))
    assert record["exit_codes"] == {"0": 0}
    assert "exit code 0 is not recorded" in capsys.readouterr().out


def test_the_end_of_the_job_ends_the_wait_for_other_nodes(node, run):
    def launched(attempt: Attempt) -> TorchrunResult:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # blocked by the agent
        return OK

    node.allocation.facts.return_value = AllocationFacts(False, 0, None)
    run(launched)
    assert signal.sigtimedwait([signal.SIGTERM], 0) is not None, "still pending"
    assert node.allocation.facts.call_count == 1


@pytest.mark.parametrize(("job_end", "is_earlier"), [(None, False), (1000.0, True), (1e12, False)])
def test_a_requeue_ends_with_the_time_of_the_job(job_end, is_earlier, node, run):
    run(replace(PREEMPTED, job_end=job_end, code=1))
    until, _ = node.allocation.requeue.call_args.args
    assert (until < 1000.0) == is_earlier


def test_a_start_that_was_replaced_during_the_requeue_stops_trying(node):
    """Node 0 was cut off from the network, and the scheduler has started the job elsewhere."""
    attempt, answers = start(node), []

    def requeue(until: float, is_current: Callable[[], bool]) -> bool:
        answers.append(is_current())
        journal.claim(node.run, 0, process={}, job_id="7", code_hash="", restart=1)
        answers.append(is_current())
        return False

    node.allocation.requeue = requeue
    assert ending.request_requeue(node, attempt, 0.0) == EXIT_DO_NOT_REQUEUE
    assert answers == [True, False]
    assert read_json(attempt.record)["message"] is None, "it is not recorded as a requeue that was refused"


def test_a_start_that_was_replaced_while_it_ran_closes_nothing(node, run):
    def launched(attempt: Attempt) -> TorchrunResult:
        start(node, restart=1)
        peers.record_node_exit(attempt, 1, 1)
        return FAILED

    code, record = run(launched)
    assert (code, record["cause"], node.run.failed.exists()) == (EXIT_DO_NOT_REQUEUE, "lost", False)


@pytest.mark.parametrize("requeued", [True, False])
def test_the_next_start_is_delayed_and_may_use_nodes_that_failed_before(requeued, node):
    """Node b failed before the newest checkpoint. The scheduler may have requeued the job by itself."""
    for restart, failed in ((0, ["b"]), (1, [])):
        attempt = start(node, restart)
        record = {
            "ended": "x",
            "cause": "preempted",
            "failed_nodes": failed,
            "checkpoint_after": 10 * restart,
        }
        write_json(attempt.record, read_json(attempt.record) | record)
    allocation: Any = node.allocation
    result = TorchrunResult(1, requeued=requeued)
    assert ending.request_requeue(node, attempt, 30.0, result) == EXIT_DONE
    assert allocation.requeue.called != requeued
    allocation.delay_start.assert_called_once_with(30.0)
    allocation.exclude.assert_called_once_with([], ["b"], node.run.script)


def other(node: NodeContext) -> NodeContext:
    return replace(node, rank=1)


@pytest.mark.parametrize(
    ("restart", "job_id", "code"),
    [
        (None, "7", EXIT_LAUNCH_FAILED),  # node 0 begins no attempt
        (1, "7", EXIT_DONE),  # this start was replaced
        (0, "8", EXIT_DO_NOT_REQUEUE),  # another job has the run directory
    ],
)
def test_a_node_without_an_attempt_of_its_start_trains_nothing(restart, job_id, code, node, run):
    if restart is not None:
        start(node, restart, job_id)
    assert run(OK, other(node)) == (code, {})


@pytest.mark.parametrize(("cause", "code"), [("finished", EXIT_DONE), ("lost", EXIT_DO_NOT_REQUEUE)])
def test_all_nodes_of_a_revoked_start_exit_alike(cause, code, node, run):
    assert journal.revoke(node.run, 0, cause, "")
    assert [run(OK, each) for each in (node, other(node))] == [(code, {})] * 2


@pytest.mark.parametrize("closes", [True, False])
def test_another_node_waits_for_node_0_to_close_the_attempt_as_long_as_for_a_silent_node(
    closes, node, run, monkeypatch
):
    monkeypatch.setattr(peers, "CLOSED_TIMEOUT_S", 0.0)
    start(node)
    timers: list[threading.Timer] = []

    def launched(attempt: Attempt) -> TorchrunResult:
        if closes:
            timers.append(threading.Timer(0.5, peers.record_closed, [attempt]))
            timers[0].start()
        return FAILED

    node.allocation.node_timeout_s.return_value = 60.0 if closes else 0.0
    assert run(launched, other(node))[0] == (EXIT_DONE if closes else 1)
    for timer in timers:
        timer.join()
    assert peers.node_exit_codes(node.run.attempt(0)) == {1: 1}


@pytest.mark.parametrize(("end", "by"), [("DONE", "job"), ("FAILED", "revoked")])
def test_the_end_of_a_needed_run_may_reach_the_node_late(
    node: NodeContext, run: Run, monkeypatch: pytest.MonkeyPatch, end: str, by: str
) -> None:
    needed = RunDir(node.run.path.with_name("needed"))
    needed.path.mkdir()
    path = journal.entry(node.run, 0).path("intent")
    write_json(path, read_json(path) | {"needs": {"sweep/needed": "6"}})

    def poll(settled: Callable[[], Any], *_: object) -> Any:
        assert settled() is None
        write_json(needed.path / end, {"cause": "stopped"})
        return settled()

    monkeypatch.setattr(agent, "poll_until", poll)
    code, _ = run(OK, replace(node, hosts=["a"]))
    (claim,) = journal.entry(node.run, 0).claims()
    assert claim["by"] == by
    if by == "revoked":
        assert code == EXIT_DO_NOT_REQUEUE
        assert claim["message"] == "it needs sweep/needed, which is not done (stopped)"


@pytest.mark.parametrize(
    ("result", "rank", "is_stopping", "last"),
    [
        (OK, 0, False, 1),
        (FAILED, 0, False, 1),
        (PREEMPTED, 0, False, 0),
        (OK, 0, True, 0),
        (OK, 1, False, 0),
    ],
)
def test_node_0_submits_the_runs_of_checkpoints_unless_the_job_is_ending(
    node: NodeContext,
    monkeypatch: pytest.MonkeyPatch,
    result: TorchrunResult,
    rank: int,
    is_stopping: bool,
    last: int,
) -> None:
    record = read_json(node.run.run_json)
    record["config"]["job"]["on_checkpoint"] = ["evaluate.py"]
    write_json(node.run.run_json, record)
    attempt = start(node)
    if is_stopping:
        write_json(attempt.stop, {"cause": "deadline"})
    spawned: list[Any] = []
    submitted: list[RunDir] = []
    monkeypatch.setattr(agent.processes, "spawn", lambda command, **_: spawned.append(command))
    monkeypatch.setattr(agent.follow_ups, "submit_last", submitted.append)
    monkeypatch.setattr(agent, "launch", lambda *_: result)
    agent._run(replace(node, rank=rank), attempt)
    assert (len(spawned), len(submitted)) == (rank == 0, last)
