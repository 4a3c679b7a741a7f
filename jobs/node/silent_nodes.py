"""Find out whether a node that recorded no exit is down, before a cause is given. Standard library only.

The survivors of a node that died see a broken connection at once, and the scheduler marks the node as down
minutes later. Without this wait, the start would count as the crash of a rank that saw its connection break.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from disttrain.records.run_directory import Attempt
from jobs.core.classify_exit import is_communication_error
from jobs.core.exit_evidence import is_rank_killed, read_rank_errors
from jobs.node import peers
from jobs.node.allocation import Allocation
from jobs.node.node_log import log_line
from jobs.node.torchrun import TorchrunResult, cause_of_end
from jobs.node.waiting import JobEnded, poll_until

_QUERY_INTERVAL_S = 5.0
_LATE_RECORD_S = 40.0
"""Time for the record of a node that is up to reach this node through a shared file system. The time after
which srun ends the other tasks of a step whose first task has ended is longer."""
_MARGIN_S = 30.0
_BEFORE_END_S = 30.0
"""Time in which node 0 closes the attempt and requeues the job, before the job's time ends."""
_LEAST_WAIT_S = 5.0
"""Time for the record of a healthy node, where less than `_BEFORE_END_S` is left."""


def explain_silence(
    attempt: Attempt,
    hosts: Sequence[str],
    result: TorchrunResult,
    allocation: Allocation,
    is_current: Callable[[], bool],
) -> TorchrunResult:
    """Node 0's `result`, with the cause `lost` if a node is down or its agent was killed.

    The failed torchrun has no cause from outside. Node 0 waits for nodes without a recorded exit: for one
    that does not respond until the scheduler marks the node as down and ends the job, otherwise for
    `_LATE_RECORD_S`. The wait ends early when `is_current` returns False, and `_BEFORE_END_S` before the end
    of the job's time, but not before `_LEAST_WAIT_S`. The job is not requeued earlier, because the next start
    could then lack its GPUs (docs/requeue.md).

    Nodes that are silent but respond change no cause where a rank failed by itself: their record may be late.
    After a request to stop, the request is the cause.
    """
    started, within_s = time.monotonic(), _longest_wait_s(result, allocation)
    query_at = started + min(_LATE_RECORD_S, within_s)
    logged = respond = False

    def silent() -> dict[int, str]:
        recorded = {0, *peers.node_exit_codes(attempt)}
        return {rank: host for rank, host in enumerate(hosts) if rank not in recorded}

    def settled() -> bool | None:
        nonlocal query_at, logged, respond
        if not (nodes := silent()) or not is_current():
            return True
        if time.monotonic() < query_at:
            return None
        query_at = time.monotonic() + _QUERY_INTERVAL_S
        if respond := all(map(allocation.node_responds, nodes.values())):
            return True
        if not logged:
            log_line(f"{_listed(nodes)} recorded no exit; waiting for the scheduler to find the node down")
        logged = True
        return None

    try:
        poll_until(settled, within_s, allocation)
    except JobEnded as ended:
        return _explain_end(attempt, result, silent(), allocation, ended)
    if not (nodes := silent()) or not is_current() or attempt.stop.exists():
        return result
    if respond and _rank_failed_by_itself(attempt):
        return result
    waited_s = time.monotonic() - started
    message = f"{_listed(nodes)} recorded no exit within {waited_s:.0f} s"
    return dataclasses.replace(result, cause="lost", message=message)


def _longest_wait_s(result: TorchrunResult, allocation: Allocation) -> float:
    """Seconds for which node 0 waits at most."""
    longest_s = allocation.node_timeout_s() + _MARGIN_S
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
