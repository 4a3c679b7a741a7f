"""The agent of one node of a job.

Node 0 claims the attempt, and the other nodes wait for the claim. Each agent runs torchrun as a child
(`jobs.node.launch`). Node 0 then closes the attempt, and requeues the job if the policy decides that. On a
machine without a scheduler, a supervisor claims and closes the attempt, and starts each agent by
`python -m jobs.node.agent`. Standard library only, for a quick start.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import message_of
from disttrain.records.file_mode import forbid_world_writes
from disttrain.records.json_files import CorruptFile, read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.run_json import read_run_json
from jobs.core import hook, journal, processes, requeue_policy
from jobs.core.attempt import (
    DoNotRestart,
    close_attempt,
    failed_hosts,
    is_current,
    open_attempt,
    record_requeue_failure,
)
from jobs.node import peers, torchrun
from jobs.node.launch import CANNOT_START, launch
from jobs.node.node_context import LOOPBACK, NodeContext
from jobs.node.node_log import log_line, redirect_output
from jobs.node.rendezvous import RendezvousError
from jobs.node.silent_nodes import explain_silence
from jobs.node.waiting import JobEnded, poll_until

_REQUEUE_TIMEOUT_S = 600.0
"""Time for which node 0 retries the requeue, unless the job ends before."""
_MARGIN_S = 2.0


def main(argv: list[str] | None = None) -> int:
    """Run one node of an attempt that a supervisor on this machine has claimed; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.node.agent", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    given = parser.parse_args(argv)
    run = RunDir(given.run_dir.absolute())
    node = NodeContext(run, given.submission, given.node_rank, [LOOPBACK] * given.nodes, None)
    return run_agent(node, given.attempt)


def run_agent(node: NodeContext, attempt: int | None = None) -> int:
    """Run one node's share of a run; the exit code.

    A job of a scheduler claims its attempt. `attempt` is the one that a supervisor has claimed.
    """
    forbid_world_writes()
    block_signals()
    processes.become_subreaper()
    try:
        if attempt is not None:
            return _run_supervised(node, node.run.identified().attempt(attempt))
        try:
            claimed = _claim(node) if node.rank == 0 else _wait_for_claim(node)
            if claimed is None:
                return _not_claimed(journal.entry(node.run, node.submission).claims())
            redirect_output(claimed.node_log(node.rank))
        except CANNOT_START as error:  # later errors of these types are not errors of the start
            log_line(f"cannot start: {message_of(error)}")
            return requeue_policy.EXIT_LAUNCH_FAILED
        return _run_first_node(node, claimed) if node.rank == 0 else _run_other_node(node, claimed)
    except (DoNotRestart, JobEnded) as reason:
        log_line(f"nothing to do: {reason}")
        return reason.exit_code


def block_signals() -> None:
    """Block the signals that `jobs.node.torchrun` and `jobs.node.waiting` handle."""
    signals = {*torchrun.WARNING_SIGNALS, *torchrun.TERMINATION_SIGNALS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def _run_supervised(node: NodeContext, attempt: Attempt) -> int:
    """Run a node whose supervisor closes the attempt, by the exit code."""
    result = launch(node, attempt)
    _record_exit(node, attempt, result)
    return result.code


def _record_exit(node: NodeContext, attempt: Attempt, result: torchrun.TorchrunResult) -> None:
    """Record the exit code for the other nodes, if the file system allows it."""
    try:
        peers.record_node_exit(attempt, node.rank, result.code)
    except OSError as error:
        log_line(f"exit code {result.code} is not recorded: {message_of(error)}")


def _claim(node: NodeContext) -> Attempt | None:
    """Open the attempt of this start of a scheduler's job; None if another start has, or it was revoked."""
    run, allocation = node.run, node.allocation
    assert allocation is not None, "a supervisor claims the attempts of its agents"
    try:
        record = read_run_json(run)
    except FileNotFoundError:  # the run was moved away or deleted
        raise
    except (CorruptFile, OSError) as error:
        journal.revoke(run, node.submission, "launch_failed", message_of(error))
        raise
    return open_attempt(
        run,
        node.submission,
        cluster=record["cluster"],
        job_id=allocation.job_id,
        nodes=node.hosts,
        restart=node.restart,
    )


def _run_first_node(node: NodeContext, attempt: Attempt) -> int:
    """Node 0 of a scheduler's job: run, close the attempt, and requeue the job."""
    run, allocation = node.run, node.allocation
    assert allocation is not None
    result = launch(node, attempt)
    _record_exit(node, attempt, result)
    if result.code == 0:
        _wait_for_node_exits(node, attempt, result)
    elif result.cause is None and result.code != requeue_policy.EXIT_LAUNCH_FAILED:
        result = explain_silence(attempt, node.hosts, result, allocation, lambda: is_current(run, attempt))
    codes = _exit_codes(node, attempt, result)
    if not is_current(run, attempt):
        return _superseded()
    status = close_attempt(
        run,
        attempt,
        codes,
        external_cause=result.cause,
        external_message=result.message,
        lost_hosts=result.lost_hosts,
        can_requeue=True,
    )
    peers.record_closed(attempt)
    log_line(f"{status.cause}: {status.message}" if status.message else status.cause)
    if not status.decision.requeue:
        call_hook(run, attempt)
        return requeue_policy.job_exit_code(status.cause, status.decision)
    return request_requeue(node, attempt, status.decision.delay_s, result)


def _exit_codes(node: NodeContext, attempt: Attempt, result: torchrun.TorchrunResult) -> dict[int, int]:
    """Recorded exit codes by node, and this node's own, which a file system may have refused to record."""
    return {**peers.node_exit_codes(attempt), node.rank: result.code}


def _wait_for_node_exits(node: NodeContext, attempt: Attempt, result: torchrun.TorchrunResult) -> None:
    """Wait until all nodes have recorded an exit; only briefly where the scheduler is ending the job."""

    def complete() -> bool | None:
        return len(_exit_codes(node, attempt, result)) == len(node.hosts) or None

    within_s = peers.NODE_EXITS_TIMEOUT_S if result.cause is None else peers.ENDING_TIMEOUT_S
    with contextlib.suppress(JobEnded):
        poll_until(complete, within_s, node.allocation)


def request_requeue(
    node: NodeContext, attempt: Attempt, delay_s: float, result: torchrun.TorchrunResult | None = None
) -> int:
    """Requeue the job of a closed attempt, unless the scheduler has, to start after `delay_s`; the exit code.

    Tries end after `_REQUEUE_TIMEOUT_S`, or with the job's time.
    """
    allocation = node.allocation
    assert allocation is not None
    until = time.time() + _REQUEUE_TIMEOUT_S
    if result is not None and result.job_end is not None:
        until = min(until, result.job_end - _MARGIN_S)
    if result is None or not result.requeued:
        if not allocation.requeue(until, lambda: is_current(node.run, attempt)):
            if not is_current(node.run, attempt):
                return _superseded()
            record_requeue_failure(node.run, attempt)
            call_hook(node.run, attempt)
            return requeue_policy.EXIT_NOT_REQUEUED
        log_line(f"job {allocation.job_id} will be started again")
    if delay_s:
        allocation.delay_start(delay_s)
    recently, formerly = failed_hosts(node.run, attempt)
    if formerly:
        allocation.exclude(recently, formerly, node.run.script)
    return requeue_policy.EXIT_DONE


def call_hook(run: RunDir, attempt: Attempt) -> None:
    """Call `job.on_end` if the run has failed, and log a failure of the call."""
    problem = hook.call_after(run, attempt)
    if problem is not None:
        log_line(problem)


def _superseded() -> int:
    log_line("another start of this job, or a revocation, has superseded this one")
    return requeue_policy.EXIT_DO_NOT_REQUEUE


def _run_other_node(node: NodeContext, attempt: Attempt) -> int:
    """A node other than 0: run, and wait until node 0 has closed the attempt."""
    result = launch(node, attempt)
    _record_exit(node, attempt, result)
    closed_within_s = peers.CLOSED_TIMEOUT_S
    if node.allocation is not None:  # node 0 may wait for a silent node
        closed_within_s += node.allocation.node_timeout_s()
    if not poll_until(lambda: peers.is_closed(attempt) or None, closed_within_s, node.allocation):
        return result.code
    if not result.requeued:
        _wait_for_requeue(node, attempt)
    return requeue_policy.EXIT_DONE


def _wait_for_requeue(node: NodeContext, attempt: Attempt) -> None:
    """Wait while node 0 requests the requeue: the first task to exit may soon end the step's other tasks."""

    def settled() -> bool | None:
        pending = (read_json_or_none(attempt.record) or {}).get("next") == "requeue"
        return None if pending and attempt.superseded() is None else True

    if not settled():
        log_line("waiting while node 0 requests the requeue")
    with contextlib.suppress(JobEnded):
        poll_until(settled, _REQUEUE_TIMEOUT_S, node.allocation)


def _wait_for_claim(node: NodeContext) -> Attempt | None:
    """The attempt that node 0 opened for this start of the job; None if this start must not train.

    Raises `RendezvousError` after `job.rendezvous_timeout_s`, and `DoNotRestart` if another job claimed it.
    """
    timeout_s = float(read_run_json(node.run)["config"]["job"]["rendezvous_timeout_s"])

    def settled() -> list[dict[str, Any]] | None:
        claims = journal.entry(node.run, node.submission).claims()
        if not claims or journal.is_revoked(claims):
            return claims or None
        restart = claims[-1].get("restart", 0)
        # Node 0 creates the attempt's record after the claim.
        record = read_json_or_none(node.run.attempt(int(claims[-1]["attempt"])).record)
        opened = restart == node.restart and record is not None
        return claims if opened or restart > node.restart else None

    claims = poll_until(settled, timeout_s, node.allocation)
    if claims is None:
        raise RendezvousError(f"node 0 began no attempt within {timeout_s:g} s")
    if journal.is_revoked(claims) or claims[-1].get("restart", 0) != node.restart:
        return None
    if node.allocation is not None and claims[-1]["job_id"] != node.allocation.job_id:
        reason = f"job {claims[-1]['job_id']} has claimed the run directory at this path"
        raise DoNotRestart(reason, requeue_policy.EXIT_DO_NOT_REQUEUE)
    return node.run.identified().attempt(int(claims[-1]["attempt"]))


def _not_claimed(claims: Sequence[Mapping[str, Any]]) -> int:
    """Log why this agent has no attempt to run; the exit code."""
    if journal.is_revoked(claims):
        log_line(f"nothing to do: the submission was revoked: {claims[-1].get('message')}")
        finished = claims[-1].get("cause") == "finished"
        return requeue_policy.EXIT_DONE if finished else requeue_policy.EXIT_DO_NOT_REQUEUE
    log_line("nothing to do: another start has claimed the submission")
    return requeue_policy.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
