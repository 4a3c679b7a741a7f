"""The agent of one node of a job.

Node 0 claims the attempt, and the other nodes wait for the claim. Each agent runs torchrun as a child
(`jobs.node.launch`). Node 0 then closes the attempt, and requeues the job if the policy decides that. On a
machine without a scheduler, a supervisor claims and closes the attempt, and starts each agent by
`python -m jobs.node.agent RUN_DIR SUBMISSION ATTEMPT NODE_RANK NODES`. Starts quickly.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import message_of
from disttrain.records.json_files import CorruptFile, forbid_world_writes, read_json, read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import follow_ups, journal, processes, requeue_policy
from jobs.core.attempt import DoNotRestart, open_attempt
from jobs.node import peers
from jobs.node.allocation import (
    LOOPBACK,
    JobEnded,
    NodeContext,
    block_signals,
    log_line,
    poll_until,
    redirect_output,
)
from jobs.node.ending import REQUEUE_TIMEOUT_S, end_start
from jobs.node.launch import CANNOT_START, launch
from jobs.node.torchrun import TorchrunResult

_NEEDS_TIMEOUT_S = 90.0
"""Longest wait for the recorded end of a run that has ended: an NFS client lists a folder a minute late."""


def main(run_dir: str, *numbers: str) -> int:
    """Run one node of an attempt that a supervisor on this machine has claimed; the exit code."""
    submission, attempt, rank, nodes = map(int, numbers)
    run = RunDir(Path(run_dir).absolute())
    return run_agent(NodeContext(run, submission, rank, [LOOPBACK] * nodes, None), attempt)


def run_agent(node: NodeContext, attempt: int | None = None) -> int:
    """Run one node's share of a run; the exit code.

    A job of a scheduler claims its attempt. `attempt` is the one that a supervisor has claimed, and closes by
    the exit code.
    """
    forbid_world_writes()
    block_signals()
    processes.become_subreaper()
    try:
        if attempt is not None:
            return _run(node, node.run.identified().attempt(attempt)).code
        try:
            claimed = _claim(node) if node.rank == 0 else _wait_for_claim(node)
            if claimed is None:
                return _not_claimed(journal.entry(node.run, node.submission).claims())
            redirect_output(claimed.node_log(node.rank))
        except CANNOT_START as error:  # later errors of these types are not errors of the start
            log_line(f"cannot start: {message_of(error)}")
            return requeue_policy.EXIT_LAUNCH_FAILED
        result = _run(node, claimed)
        return end_start(node, claimed, result) if node.rank == 0 else _wait_for_end(node, claimed, result)
    except (DoNotRestart, JobEnded) as reason:
        log_line(f"nothing to do: {reason}")
        return reason.exit_code


def _run(node: NodeContext, attempt: Attempt) -> TorchrunResult:
    """Run torchrun, and record its exit code for the other nodes, if the file system allows it.

    Meanwhile node 0 of a scheduler's job submits the runs of `job.on_checkpoint`. It ends with torchrun.
    """
    has_follow_ups = node.rank == 0 and node.allocation is not None
    if has_follow_ups and (command := follow_ups.checkpoint_command(node.run)) is not None:
        processes.spawn(command, log=sys.stdout.fileno())
    result = launch(node, attempt)
    try:
        peers.record_node_exit(attempt, node.rank, result.code)
    except OSError as error:
        log_line(f"exit code {result.code} is not recorded: {message_of(error)}")
    if has_follow_ups and result.cause is None and not attempt.stop.exists():  # else the job may end soon
        follow_ups.submit_last(node.run)
    return result


def _claim(node: NodeContext) -> Attempt | None:
    """Open the attempt of this start of a scheduler's job; None if another start has, or it was revoked."""
    run, allocation = node.run, node.allocation
    assert allocation is not None, "a supervisor claims the attempts of its agents"
    try:
        record = read_json(run.run_json)
    except FileNotFoundError:  # the run was moved away or deleted
        raise
    except (CorruptFile, OSError) as error:
        journal.revoke(run, node.submission, "launch_failed", message_of(error))
        raise
    if not journal.entry(run, node.submission).claims():
        poll_until(lambda: _needs_are_settled(node) or None, _NEEDS_TIMEOUT_S, allocation)
    return open_attempt(
        run,
        node.submission,
        cluster=record["cluster"],
        job_id=allocation.job_id,
        nodes=node.hosts,
        restart=node.restart,
    )


def _needs_are_settled(node: NodeContext) -> bool:
    """Whether the ends of the runs that this one needs have reached this node's view of the file system."""
    unmet = journal.unmet_need(node.run, node.submission)
    return unmet is None or unmet[0].failed.exists()


def _wait_for_claim(node: NodeContext) -> Attempt | None:
    """The attempt that node 0 opened for this start of the job; None if this start must not train.

    Raises `CannotStart` after `job.rendezvous_timeout_s`, and `DoNotRestart` if another job claimed it.
    """
    timeout_s = float(read_json(node.run.run_json)["config"]["job"]["rendezvous_timeout_s"])

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
        raise peers.CannotStart(f"node 0 began no attempt within {timeout_s:g} s")
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


def _wait_for_end(node: NodeContext, attempt: Attempt, result: TorchrunResult) -> int:
    """A node other than 0: wait until node 0 has closed the attempt, and while it requests the requeue.

    The first task to exit may soon end the step's other tasks.
    """
    closed_within_s = peers.CLOSED_TIMEOUT_S
    if node.allocation is not None:  # node 0 may wait for a silent node
        closed_within_s += node.allocation.node_timeout_s()
    if not poll_until(lambda: peers.is_closed(attempt) or None, closed_within_s, node.allocation):
        return result.code

    def settled() -> bool | None:
        pending = (read_json_or_none(attempt.record) or {}).get("next") == "requeue"
        return None if pending and attempt.superseded() is None else True

    if not result.requeued and not settled():
        log_line("waiting while node 0 requests the requeue")
        with contextlib.suppress(JobEnded):
            poll_until(settled, REQUEUE_TIMEOUT_S, node.allocation)
    return requeue_policy.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
