"""Close an attempt whose agents ended without closing it, and requeue its job. Standard library only.

The batch script starts this as a step of its own after a failure of the agents' step. SIGKILL may have ended
node 0's agent, or the scheduler's launcher and with it all agents.
"""

from __future__ import annotations

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt
from jobs.core import journal, requeue_policy
from jobs.core.attempt import close_attempt, is_current
from jobs.node import peers
from jobs.node.agent import block_signals, call_hook, request_requeue
from jobs.node.node_context import NodeContext
from jobs.node.node_log import log_line, redirect_output


def close_abandoned(node: NodeContext) -> int:
    """Close the attempt of this start and requeue the job; 0 if the job will be started again.

    Nothing is done if the agents have closed the attempt without requesting a requeue, if this start claimed
    no attempt, or if the scheduler is ending the job.
    """
    assert node.allocation is not None
    block_signals()
    attempt = _attempt_of_start(node)
    facts = node.allocation.facts()
    ending = facts is not None and (not facts.running or facts.restarts > node.restart)
    if attempt is None or ending or not is_current(node.run, attempt):
        return requeue_policy.EXIT_FAILED
    redirect_output(attempt.node_log(0))
    record = read_json_or_none(attempt.record) or {}
    requeue, delay_s = record.get("next") == "requeue", 0.0
    if not record.get("ended"):
        status = close_attempt(
            node.run,
            attempt,
            peers.node_exit_codes(attempt),
            external_cause="lost",
            external_message="the agents ended without closing the attempt",
            can_requeue=True,
        )
        peers.record_closed(attempt)
        log_line(f"{status.cause}: {status.message}" if status.message else status.cause)
        requeue, delay_s = status.decision.requeue, status.decision.delay_s
        if not requeue:
            call_hook(node.run, attempt)
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
