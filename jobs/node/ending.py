"""The end of a start on node 0: the cause where a node is silent, the close of the attempt, and the requeue.

The survivors of a node that died see a broken connection at once, and the scheduler marks the node as down
minutes later. Without a wait, the start would count as the crash of a rank that saw its connection break.
Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt
from jobs.core import hook, journal, requeue_policy
from jobs.core.attempt import close_attempt, failed_hosts, is_current, record_requeue_failure
from jobs.core.classify_exit import ExitStatus, is_communication_error
from jobs.core.exit_evidence import is_rank_killed, read_rank_errors
from jobs.core.packing import Packing
from jobs.node import peers
from jobs.node.allocation import (
    Allocation,
    JobEnded,
    NodeContext,
    block_signals,
    log_line,
    poll_until,
    redirect_output,
)
from jobs.node.torchrun import TorchrunResult, cause_of_end

REQUEUE_TIMEOUT_S = 600.0
"""Time for which node 0 retries the requeue, unless the job ends before."""
_MARGIN_S = 2.0
_LATE_RECORD_S = 40.0
"""Time for the record of a node that is up to reach this node through a shared file system. The time after
which srun ends the other tasks of a step whose first task has ended is longer."""
_BEYOND_TIMEOUT_S = 30.0
_BEFORE_END_S = 30.0
"""Time in which node 0 closes the attempt and requeues the job, before the job's time ends."""
_FIRST_CLAIM_S = 120.0
"""Time in which the agents of the other runs of a job have started, if ever."""
_LEAST_WAIT_S = 5.0
"""Time for the record of a healthy node, where less than `_BEFORE_END_S` is left."""


def end_start(node: NodeContext, attempt: Attempt, result: TorchrunResult) -> int:
    """Close the attempt whose torchrun has ended on this node, and requeue the job; the exit code."""
    if result.code == 0:
        _wait_for_node_exits(node, attempt, result)
    elif result.cause is None and result.code != requeue_policy.EXIT_LAUNCH_FAILED:
        result = explain_silence(node, attempt, result)
    if not is_current(node.run, attempt):
        return superseded()
    status = _close(node, attempt, _exit_codes(node, attempt, result), result)
    if status.decision.requeue:
        return request_requeue(node, attempt, status.decision.delay_s, result)
    return requeue_policy.job_exit_code(status.cause, status.decision)


def close_abandoned(node: NodeContext) -> int:
    """Close the attempt of this start after a failure of the agents' step, and requeue the job.

    SIGKILL may have ended node 0's agent, or the scheduler's launcher and with it all agents. The exit code
    is 0 if the job will be started again. Nothing is done if the agents have closed the attempt without
    requesting a requeue, if this start claimed no attempt, or if the scheduler is ending the job.
    """
    assert node.allocation is not None
    block_signals()
    attempt = _attempt_of_start(node)
    facts = node.allocation.facts()
    is_ending = facts is not None and (not facts.running or facts.restarts > node.restart)
    if attempt is None or is_ending or not is_current(node.run, attempt):
        return requeue_policy.EXIT_FAILED
    redirect_output(attempt.node_log(0))
    record = read_json_or_none(attempt.record) or {}
    requeue, delay_s = record.get("next") == "requeue", 0.0
    if not record.get("ended"):
        message = "the agents ended without closing the attempt"
        lost = TorchrunResult(requeue_policy.EXIT_FAILED, "lost", message)
        decision = _close(node, attempt, peers.node_exit_codes(attempt), lost).decision
        requeue, delay_s = decision.requeue, decision.delay_s
    return request_requeue(node, attempt, delay_s) if requeue else requeue_policy.EXIT_FAILED


def _attempt_of_start(node: NodeContext) -> Attempt | None:
    """The attempt that this start of the job has claimed; None if it has claimed none."""
    claims = journal.entry(node.run, node.submission).claims()
    if not claims or journal.is_revoked(claims) or claims[-1].get("restart", 0) != node.restart:
        return None
    if node.allocation is not None and claims[-1]["job_id"] != node.allocation.job_id:
        return None
    attempt = node.run.identified().attempt(int(claims[-1]["attempt"]))
    return attempt if attempt.record.exists() else None


def _close(
    node: NodeContext, attempt: Attempt, codes: Mapping[int, int], result: TorchrunResult
) -> ExitStatus:
    """Close the attempt; call `job.on_end` if the job is not to be requeued."""
    status = close_attempt(
        node.run,
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
        _call_hook(node, attempt)
    return status


def _exit_codes(node: NodeContext, attempt: Attempt, result: TorchrunResult) -> dict[int, int]:
    """Recorded exit codes by node, and this node's own, which a file system may have refused to record."""
    return {**peers.node_exit_codes(attempt), node.rank: result.code}


def _wait_for_node_exits(node: NodeContext, attempt: Attempt, result: TorchrunResult) -> None:
    """Wait until all nodes have recorded an exit; only briefly where the scheduler is ending the job."""

    def complete() -> bool | None:
        return len(_exit_codes(node, attempt, result)) == len(node.hosts) or None

    within_s = peers.NODE_EXITS_TIMEOUT_S if result.cause is None else peers.ENDING_TIMEOUT_S
    with contextlib.suppress(JobEnded):
        poll_until(complete, within_s, node.allocation)


def request_requeue(
    node: NodeContext, attempt: Attempt, delay_s: float, result: TorchrunResult | None = None
) -> int:
    """Requeue the job of a closed attempt, unless the scheduler has, to start after `delay_s`; the exit code.

    The other runs of the job end first. Tries end after `REQUEUE_TIMEOUT_S`, or with the job's time.
    """
    allocation = node.allocation
    assert allocation is not None
    is_requeued = result is not None and result.requeued
    if node.packing and not is_requeued:
        try:
            end = result.job_end if result else None
            _wait_for_other_runs(node, attempt, node.packing, end or allocation.end_time())
        except JobEnded as ended:
            if not ended.requeued:
                return _not_requeued(node, attempt)
            is_requeued = True
    until = time.time() + REQUEUE_TIMEOUT_S
    if result is not None and result.job_end is not None:
        until = min(until, result.job_end - _MARGIN_S)
    if not is_requeued:
        if not allocation.requeue(until, lambda: is_current(node.run, attempt)):
            return _not_requeued(node, attempt)
        log_line(f"job {allocation.job_id} will be started again")
    if delay_s:
        allocation.delay_start(delay_s)
    recently, formerly = failed_hosts(node.run, attempt)
    if formerly:
        allocation.exclude(recently, formerly, node.run.script)
    return requeue_policy.EXIT_DONE


def _not_requeued(node: NodeContext, attempt: Attempt) -> int:
    if not is_current(node.run, attempt):
        return superseded()
    record_requeue_failure(node.run, attempt)
    _call_hook(node, attempt)
    return requeue_policy.EXIT_NOT_REQUEUED


def _wait_for_other_runs(node: NodeContext, attempt: Attempt, packing: Packing, end: float | None) -> None:
    """Wait until no other run of the job is at work, or until shortly before the `end` of the job's time.

    Raises `JobEnded`.
    """
    began = time.time()
    within_s = math.inf if end is None else end - _BEFORE_END_S - began
    log_line("the job starts again once its other runs have ended")

    def ended() -> bool | None:
        is_early = time.time() < began + _FIRST_CLAIM_S
        is_waiting = packing.has_others_at_work(node.run, node.restart, unclaimed=is_early)
        return not is_waiting or not is_current(node.run, attempt) or None

    poll_until(ended, within_s, node.allocation)


def _call_hook(node: NodeContext, attempt: Attempt) -> None:
    """Call `job.on_end` if the run has failed, and log a failure of the call."""
    if (problem := hook.call_after(node.run, attempt)) is not None:
        log_line(problem)


def superseded() -> int:
    log_line("another start of this job, or a revocation, has superseded this one")
    return requeue_policy.EXIT_DO_NOT_REQUEUE


def explain_silence(node: NodeContext, attempt: Attempt, result: TorchrunResult) -> TorchrunResult:
    """Node 0's `result`, with the cause `lost` if a node is down or its agent was killed.

    The failed torchrun has no cause from outside. Node 0 waits for nodes without a recorded exit: for one
    that does not respond until the scheduler marks the node as down and ends the job, otherwise for
    `_LATE_RECORD_S`. The wait ends early when the attempt is superseded, and `_BEFORE_END_S` before the end
    of the job's time, but not before `_LEAST_WAIT_S`. The job is not requeued earlier, because the next start
    could then lack its GPUs (docs/requeue.md).

    Nodes that are silent but respond change no cause where a rank failed by itself: their record may be late.
    After a request to stop, the request is the cause.
    """
    allocation = node.allocation
    assert allocation is not None
    started, within_s = time.monotonic(), _longest_wait_s(result, allocation)
    first_s = min(_LATE_RECORD_S, within_s)

    def silent() -> dict[int, str]:
        recorded = {0, *peers.node_exit_codes(attempt)}
        return {rank: host for rank, host in enumerate(node.hosts) if rank not in recorded}

    def settled() -> bool | None:
        return not silent() or not is_current(node.run, attempt) or None

    def respond() -> bool:
        return all(map(allocation.node_responds, silent().values()))

    try:
        if not poll_until(settled, first_s, allocation) and not respond():
            log_line(f"{_listed(silent())} recorded no exit; waiting for the scheduler to find the node down")
            poll_until(lambda: settled() or respond() or None, within_s - first_s, allocation)
    except JobEnded as ended:
        return _explain_end(attempt, result, silent(), allocation, ended)
    if not (nodes := silent()) or not is_current(node.run, attempt) or attempt.stop.exists():
        return result
    if _rank_failed_by_itself(attempt) and respond():
        return result
    waited_s = time.monotonic() - started
    message = f"{_listed(nodes)} recorded no exit within {waited_s:.0f} s"
    return dataclasses.replace(result, cause="lost", message=message)


def _longest_wait_s(result: TorchrunResult, allocation: Allocation) -> float:
    """Seconds for which node 0 waits at most."""
    longest_s = allocation.node_timeout_s() + _BEYOND_TIMEOUT_S
    if result.job_end is None:
        return longest_s
    return max(_LEAST_WAIT_S, min(longest_s, result.job_end - _BEFORE_END_S - time.time()))


def _rank_failed_by_itself(attempt: Attempt) -> bool:
    """Whether a rank was killed, or recorded an error that the loss of a peer does not explain."""
    return is_rank_killed(attempt) or not all(map(is_communication_error, read_rank_errors(attempt)))


def _explain_end(
    attempt: Attempt,
    result: TorchrunResult,
    silent: Mapping[int, str],
    allocation: Allocation,
    ended: JobEnded,
) -> TorchrunResult:
    """Cause of a job that the scheduler ended while some nodes were silent."""
    names = allocation.nodes_down()
    down = {rank: host for rank, host in silent.items() if host in names}
    cause, message = cause_of_end(ended.end_cause, result.job_end)
    if not down and attempt.stop.exists() and (ended.requeued or cause != "cancelled"):
        return dataclasses.replace(result, requeued=ended.requeued, lost_hosts=())
    if not down and not ended.requeued:
        return dataclasses.replace(result, cause=cause, message=message, lost_hosts=())
    message = f"{_listed(down)} is down" if down else f"{_listed(silent)} recorded no exit"
    hosts = tuple(down.values())
    return dataclasses.replace(
        result, cause="lost", message=message, requeued=ended.requeued, lost_hosts=hosts
    )


def _listed(nodes: Mapping[int, str]) -> str:
    return ", ".join(f"node {rank} ({host})" for rank, host in nodes.items())
