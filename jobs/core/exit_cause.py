"""From what an attempt left behind to why it ended: pure functions, standard library only.

The exit code of torchrun says little: it is 1 whatever its workers did. So the proof of success is
`metrics.json`, and the cause of a failure is looked for where it is most exact: the error file of the
rank that failed first, then the signals torchrun saw, then the exit codes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.core.requeue_policy import EXIT_LAUNCH_FAILED, NO_REQUEUE, RULES, RequeueDecision


@dataclass(frozen=True)
class ExitEvidence:
    """What an attempt left behind."""

    completed: bool
    """Whether `metrics.json` says that this attempt trained to the end."""
    exit_codes: Mapping[int, int]
    """Exit code of each node's agent, which is that of its torchrun; -N if it was ended by signal N."""
    rank_errors: Sequence[Mapping[str, Any]] = ()
    """The error files of the ranks (`records.RankError`)."""
    killed_workers: Sequence[tuple[int, int]] = ()
    """(rank, signal) of the first worker to fail on a node, where a signal ended it."""
    without_memory: Sequence[int] = ()
    """Those of these ranks on whose node the kernel ended processes for want of memory."""
    stopped: str | None = None
    """When the attempt was ended from outside: `timeout` or `cancelled`, or where Slurm took the job back
    into its queue `preempted` or `lost`."""
    stopped_message: str | None = None
    asked: str | None = None
    """Why the ranks were asked to leave, as `stop.json` says."""
    asked_time: float = 0.0
    """When, in seconds since the epoch."""
    left: str | None = None
    """Why the ranks agreed to leave before the end, having saved, as `metrics.json` of this attempt says."""
    left_message: str | None = None
    started_ranks: bool = True
    """Whether any rank got as far as leaving a file."""
    last_lines: Mapping[int, str] = field(default_factory=dict)
    """The last line of each node's log that a rank wrote."""


@dataclass(frozen=True)
class ExitStatus:
    cause: str
    message: str | None
    decision: RequeueDecision = NO_REQUEUE
    """Whether its job is to be started again by itself."""

    def with_decision(self, decision: RequeueDecision) -> ExitStatus:
        """The same, its message saying what came of it where that needs saying."""
        message = "; ".join(filter(None, [self.message, decision.reason])) or None
        return ExitStatus(self.cause, message, decision)

    @property
    def retryable(self) -> bool:
        """Whether the same command, given again, may start the run again."""
        return RULES[self.cause].again


def classify_exit(evidence: ExitEvidence) -> ExitStatus:
    """Why the attempt ended."""
    if evidence.completed:
        return ExitStatus("finished", None)
    if evidence.stopped == "cancelled":
        return ExitStatus(evidence.stopped, evidence.stopped_message)
    if evidence.left:
        return ExitStatus(evidence.left, evidence.left_message)
    if evidence.stopped:
        return ExitStatus(evidence.stopped, evidence.stopped_message)
    if evidence.asked and not any(error["time"] < evidence.asked_time for error in evidence.rank_errors):
        return ExitStatus(evidence.asked, "asked to leave, and ended before it could save")
    return _rank_failure(evidence) or _node_failure(evidence)


def _rank_failure(evidence: ExitEvidence) -> ExitStatus | None:
    """The failure of a rank, if it was one."""
    # A worker killed from outside writes nothing, and its peers then fail on its broken connection: what
    # torchrun saw comes before what they wrote. Except for an abort, by which a peer may end itself.
    killed = [(rank, number) for rank, number in evidence.killed_workers if number != signal.SIGTERM]
    starved = [
        rank for rank, number in killed if number == signal.SIGKILL and rank in evidence.without_memory
    ]
    if starved:
        why = f"rank {min(starved)} was ended by the kernel: its node had no memory left for it"
        return ExitStatus("out_of_memory", why)
    for rank, number in sorted(killed):
        if number != signal.SIGABRT or not evidence.rank_errors:
            return ExitStatus("killed", f"rank {rank} was ended by {_signal_name(number)}")
    if evidence.rank_errors:
        first = min(evidence.rank_errors, key=lambda error: error["time"])
        return ExitStatus(
            first["cause"], f"rank {first['rank']}: {first['kind']}: {_shortened(first['message'])}"
        )
    return None


def _node_failure(evidence: ExitEvidence) -> ExitStatus:
    for node, code in sorted(evidence.exit_codes.items()):
        if code < 0:
            return ExitStatus("lost", f"the agent of node {node} was ended by {_signal_name(-code)}")
    failed = {node: code for node, code in sorted(evidence.exit_codes.items()) if code}
    if not failed:
        return ExitStatus("crashed", "every rank exited with code 0, yet metrics.json does not say completed")
    node = next((n for n, code in failed.items() if code == EXIT_LAUNCH_FAILED), next(iter(failed)))
    words = _shortened(evidence.last_lines.get(node, "")) or "no output"
    if failed[node] == EXIT_LAUNCH_FAILED or not evidence.started_ranks:
        return ExitStatus("launch_failed", f"node {node}: {words}")
    return ExitStatus("crashed", f"torchrun of node {node} exited with code {failed[node]}: {words}")


def root_cause_worker(log: str) -> tuple[int, int] | None:
    """(rank, signal) of the worker that torchrun names as the root cause at the end of its log, if a
    signal ended it."""
    _, found, cause = log.rpartition("Root Cause (first observed failure)")
    seen = re.search(r"rank +: (\d+) .*?exitcode +: -(\d+) ", cause, re.DOTALL) if found else None
    return (int(seen[1]), int(seen[2])) if seen else None


def last_rank_line(log: str) -> str:
    """The last line of a node's log before torchrun takes the word."""
    before = re.split(r"^E\d{4} .* failed \(exitcode: ", log, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in before.splitlines() if line.strip(" =-")]
    return lines[-1] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shortened(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
