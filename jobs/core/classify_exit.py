"""Classify why an attempt ended, from the files and exit codes it left. Pure; standard library only.

torchrun exits with code 1 for most failures of its workers, so its exit code is the weakest evidence.
`metrics.json` proves success. A failure is classified by the most specific evidence: the error file of the
rank that failed first, then the signals that torchrun logged, then the exit codes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from jobs.core.log_text import error_lines, shortened
from jobs.core.rank_positions import RankPosition, describe_hang, silent_rank
from jobs.core.requeue_policy import EXIT_LAUNCH_FAILED, NO_REQUEUE, RULES, RequeueDecision

_COMMUNICATION = re.compile(
    r"DistNetworkError|DistBackendError|DistStoreError|gloo|NCCL|Connection (reset|closed|refused)"
    r"|Broken pipe|Timed out waiting"
)
"""Errors of PyTorch, gloo and NCCL on a rank whose peer has ended or is silent."""
_AGENT = re.compile(r"^\S+ agent: ")
"""Time and source of an agent's line in the log of its node."""
_TIMEOUT = re.compile(r"time(d )?out", re.IGNORECASE)


@dataclass(frozen=True)
class ExitEvidence:
    """Files and exit codes of one attempt."""

    completed: bool
    """Whether `metrics.json` of this attempt says `completed`."""
    exit_codes: Mapping[int, int]
    """Exit code of each node's agent, which is its torchrun's; -N if signal N ended the agent."""
    rank_errors: Sequence[Mapping[str, Any]] = ()
    """Error files of the ranks (`records.RankError`). Those of a command have the time `found`, at which
    torchrun found the failure, besides that of the last line in the rank's log."""
    killed_workers: Sequence[tuple[int, int]] = ()
    """(rank, signal) of the first failed worker of each node where a signal ended it."""
    exited_workers: Sequence[tuple[int, int]] = ()
    """(rank, exit code) of the first failed worker of each node where no signal ended it."""
    oom_ranks: Sequence[int] = ()
    """Killed ranks on nodes where the OOM killer ran."""
    external_cause: str | None = None
    """Cause of an end from outside: `timeout`, `cancelled`, or after a requeue by the scheduler `preempted`
    or `lost`."""
    external_message: str | None = None
    requested_cause: str | None = None
    """Cause in `stop.json`, the request that the ranks stop."""
    requested_at: float = 0.0
    """Time of that request, in seconds since the epoch."""
    graceful_cause: str | None = None
    """Cause for which the ranks saved and stopped early, from `metrics.json` of this attempt."""
    graceful_message: str | None = None
    finished_message: str | None = None
    rank_positions: Sequence[RankPosition] = ()
    """Positions of the ranks of nodes whose agent ended them."""
    hung_at: float | None = None
    """Time at which the first agent found a hang, in seconds since the epoch; None without one."""
    silent_nodes: Sequence[int] = ()
    """Nodes without an exit code; empty if no node has one, as after the end of srun with all agents."""
    lost_peer: str | None = None
    """Node at the other end of the first lost connection."""
    ranks_started: bool = True
    """Whether any rank wrote a file."""
    last_lines: Mapping[int, str] = field(default_factory=dict)
    """Last line of each node's log that a rank wrote."""
    preflight_refusal: str | None = None
    """Message of the pre-flight that refused the nodes of this attempt."""
    nodes_at_fault: Sequence[int] = ()
    """Nodes that the pre-flight singled out, by rank."""
    is_command: bool = False
    """Whether the run is a `command`, whose exit code 0 means success."""


@dataclass(frozen=True)
class ExitStatus:
    """Why an attempt ended, and whether its job starts again."""

    cause: str
    message: str | None
    decision: RequeueDecision = NO_REQUEUE
    failed_ranks: tuple[int, ...] = ()
    """Ranks that failed by themselves, not on the loss of a peer."""
    failed_nodes: tuple[int, ...] = ()
    """Nodes that failed as a whole, by rank."""
    first_failed_rank: int | None = None
    """Rank that failed first, also by the loss of a peer or for want of memory."""

    def with_decision(self, decision: RequeueDecision) -> ExitStatus:
        """This status with a requeue decision, whose reason is appended to the message."""
        message = "; ".join(filter(None, [self.message, decision.reason])) or None
        return replace(self, message=message, decision=decision)

    @property
    def retryable(self) -> bool:
        """Whether the same `sweep` or `run` command starts the run again."""
        return RULES[self.cause].retryable


def classify_exit(evidence: ExitEvidence) -> ExitStatus:
    """The exit cause of an attempt, by the strongest evidence first."""
    if evidence.completed:
        return ExitStatus("finished", evidence.finished_message)
    if evidence.external_cause == "cancelled":
        return ExitStatus(evidence.external_cause, evidence.external_message)
    if evidence.graceful_cause:
        return ExitStatus(evidence.graceful_cause, evidence.graceful_message)
    if evidence.preflight_refusal:
        at_fault = tuple(evidence.nodes_at_fault)
        return ExitStatus("preflight_failed", evidence.preflight_refusal, failed_nodes=at_fault)
    if evidence.external_cause:
        lost = tuple(evidence.silent_nodes) if evidence.external_cause == "lost" else ()
        return ExitStatus(evidence.external_cause, evidence.external_message, failed_nodes=lost)
    found = [error.get("found", error["time"]) for error in evidence.rank_errors]
    failed_before = any(time < evidence.requested_at for time in found)
    if evidence.requested_cause and not failed_before:
        return ExitStatus(evidence.requested_cause, "ended before it could save, after a request to stop")
    return _hang(evidence) or _rank_failure(evidence) or _node_failure(evidence)


def _hang(evidence: ExitEvidence) -> ExitStatus | None:
    """The hang that an agent found, or that the error of a rank shows which waited for another one.

    A hang is no cause where a rank failed before it, or where the OOM killer ended a rank.
    """
    errors = [error for error in evidence.rank_errors if not is_communication_error(error)]
    if not evidence.rank_positions or evidence.oom_ranks:
        return None
    if evidence.hung_at is not None:
        if any(error["time"] < evidence.hung_at for error in errors):
            return None
        hung = silent_rank(evidence.rank_positions)
        return ExitStatus(
            "hung",
            describe_hang(evidence.rank_positions, evidence.silent_nodes),
            failed_ranks=(hung.rank,) if hung else (),
            failed_nodes=() if hung else tuple(evidence.silent_nodes),
            first_failed_rank=hung.rank if hung else None,
        )
    silent = silent_rank(evidence.rank_positions)
    if errors or evidence.killed_workers or silent is None or not evidence.rank_errors:
        return None
    first = min(evidence.rank_errors, key=lambda error: error["time"])
    if not silent.stopped and _TIMEOUT.search(first["message"]) is None:
        return None
    hang = describe_hang(evidence.rank_positions, evidence.silent_nodes)
    message = f"{hang}; rank {first['rank']} waited for it"
    return ExitStatus("hung", message, failed_ranks=(silent.rank,), first_failed_rank=silent.rank)


def is_communication_error(error: Mapping[str, Any]) -> bool:
    """Whether a rank lost its connection to another one, or waited for it too long."""
    return _COMMUNICATION.search(f"{error['kind']}: {error['message']}") is not None


def _rank_failure(evidence: ExitEvidence) -> ExitStatus | None:
    """The failure of the first failed rank; None if no rank is known to have failed."""
    # A killed worker writes no error file, and its peers fail on the broken connection afterwards. So the
    # signals in torchrun's log come before the error files; except SIGABRT, by which a peer may end itself.
    killed = [(rank, number) for rank, number in evidence.killed_workers if number != signal.SIGTERM]
    out_of_memory = [
        rank for rank, number in killed if number == signal.SIGKILL and rank in evidence.oom_ranks
    ]
    if out_of_memory:
        message = (
            f"rank {min(out_of_memory)} was killed by the kernel's OOM killer: its node ran out of memory"
        )
        return ExitStatus("out_of_memory", message, first_failed_rank=min(out_of_memory))
    for rank, number in sorted(killed):
        if number != signal.SIGABRT or not evidence.rank_errors:
            message = f"rank {rank} was ended by {_signal_name(number)}"
            return ExitStatus("killed", message, failed_ranks=(rank,), first_failed_rank=rank)
    if not evidence.rank_errors:
        return None
    first = min(evidence.rank_errors, key=lambda error: error["time"])
    first_rank = int(first["rank"])
    message = f"rank {first_rank}: {first['kind']}: {shortened(first['message'])}"
    if not is_communication_error(first):
        return ExitStatus(first["cause"], message, failed_ranks=(first_rank,), first_failed_rank=first_rank)
    # A rank that ends without an error file, as by `os._exit`, leaves broken connections on its peers.
    failed = {error["rank"] for error in evidence.rank_errors}
    for rank, code in sorted(evidence.exited_workers):
        if rank not in failed:
            message = f"rank {rank} exited with code {code}; then {message}"
            return ExitStatus("crashed", message, failed_ranks=(rank,), first_failed_rank=rank)
    if evidence.lost_peer is not None:
        message = f"rank {first_rank} lost its connection to {evidence.lost_peer}: {message}"
    return ExitStatus(first["cause"], message, first_failed_rank=first_rank)


def _node_failure(evidence: ExitEvidence) -> ExitStatus:
    """The failure of a node's agent or torchrun, by exit code."""
    for node, code in sorted(evidence.exit_codes.items()):
        if code < 0:
            message = f"the agent of node {node} was ended by {_signal_name(-code)}"
            return ExitStatus("lost", message, failed_nodes=(node,))
    failed = {node: code for node, code in sorted(evidence.exit_codes.items()) if code}
    if not failed:
        if evidence.silent_nodes:
            message = f"node {evidence.silent_nodes[0]} recorded no exit, while the others exited with code 0"
            return ExitStatus("lost", message, failed_nodes=tuple(evidence.silent_nodes))
        return ExitStatus("crashed", "every rank exited with code 0, yet metrics.json does not say completed")
    node = next((n for n, code in failed.items() if code == EXIT_LAUNCH_FAILED), next(iter(failed)))
    line = shortened(_AGENT.sub("", evidence.last_lines.get(node, ""))) or "no output"
    if failed[node] == EXIT_LAUNCH_FAILED or not evidence.ranks_started:
        return ExitStatus("launch_failed", f"node {node}: {line}", failed_nodes=(node,))
    return ExitStatus("crashed", f"torchrun of node {node} exited with code {failed[node]}: {line}")


class FailedWorker(NamedTuple):
    """The worker that torchrun names as root cause."""

    rank: int
    code: int
    """Exit code; -N for signal N."""
    time: float
    """End of the second in which torchrun found its failure, in seconds since the epoch."""


def root_cause_worker(log: str) -> FailedWorker | None:
    """The root cause in torchrun's log, which has times of this time zone in whole seconds, rounded down."""
    _, found, cause = log.rpartition("Root Cause (first observed failure)")
    pattern = r"time +: (\d+-\d+-\d+_[\d:]+).*?rank +: (\d+) .*?exitcode +: (-?\d+) "
    match = re.search(pattern, cause, re.DOTALL) if found else None
    if match is None:
        return None
    return FailedWorker(int(match[2]), int(match[3]), datetime.fromisoformat(match[1]).timestamp() + 1)


def peer_address(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Address at the other end of the connection that a rank lost first; None if no rank names one."""
    lost = sorted(filter(is_communication_error, errors), key=lambda error: error["time"])
    match = re.search(r"\[?(\d+\.\d+\.\d+\.\d+)\]?:\d+", lost[0]["message"]) if lost else None
    return match[1] if match else None


def last_rank_line(log: str) -> str:
    """The last line of a node's log that may show a cause, before torchrun's own failure report."""
    before = re.split(r"^E\d{4} .* failed \(exitcode: ", log, maxsplit=1, flags=re.MULTILINE)[0]
    return next(reversed(error_lines(before)), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
