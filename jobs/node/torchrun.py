"""One node's torchrun, watched to its end: signals of the scheduler, and the ends of the other nodes.

A signal may be a warning (pre-emption with grace, the time limit ahead, `scancel --signal`) or the beginning
of the end (`scancel`, the limit itself, a requeue): the same SIGTERM serves for both. So the scheduler is
asked whether the job still runs. A warning becomes `stop.json` in the attempt's folder, which the ranks look
for; torchrun is told nothing, for it would end its ranks. Slurm may signal this process alone or every
process of the step: torchrun and the ranks outlive either. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrain.records.json_files import create_exclusive
from disttrain.records.run_directory import Attempt
from jobs.core import processes
from jobs.node import peers
from jobs.node.allocation import Allocation, AllocationFacts

WARNING_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 1.0
_LATE_S = 2.0
"""How long a signal may reach this process after it ended the one below."""
_MARGIN_S = 2.0
"""Between our end of what is left and Slurm's, so that there is time to write down how it ended."""
_PEER_S = 10.0
"""How long torchrun gets, once another node has failed, to notice or to finish what it is at."""
_EARLY_S = 90.0
"""How much too early the warning of a time limit comes at most: Slurm looks every 30 s, and allows for 60."""
_LIMIT_S = 5.0
"""How long before its time is up a job that is ended was ended for that, where nobody says why."""


@dataclass(frozen=True)
class TorchrunResult:
    """How a node's share of an attempt ended."""

    code: int
    cause: str | None = None
    """When it was ended from outside: `timeout` or `cancelled`, or where Slurm took the job back
    `preempted` or `lost`."""
    message: str | None = None
    taken_back: bool = False
    """Whether Slurm has requeued the job by itself."""
    job_end: float | None = None
    """When the job's time is up for all that is known, in seconds since the epoch."""


@dataclass(frozen=True)
class TorchrunContext:
    """Whose torchrun it is."""

    attempt: Attempt
    node: int
    nodes: int
    deadline: float
    """When the job's time was up for what was known at its start, in seconds since the epoch."""
    lead_s: float
    """How long before that ranks stop."""
    allocation: Allocation | None
    """None where a supervisor starts the agents, which also ends them."""


def run_torchrun(
    command: Sequence[str], env: Mapping[str, str], log: int, place: TorchrunContext
) -> TorchrunResult:
    """Run torchrun to its end; nothing of it is left behind. These signals and SIGCHLD have to be blocked."""
    return _TorchrunMonitor(place).run(processes.spawn(command, log=log, env=env))


class _TorchrunMonitor:
    def __init__(self, place: TorchrunContext) -> None:
        self._place = place
        self._child = 0
        self._job_end = place.deadline
        self._kill_at: float | None = None
        self._end: tuple[str, str] | None = None
        self._taken_back = False

    def run(self, child: int) -> TorchrunResult:
        self._child = child
        code = None
        while code is None:
            received = signal.sigtimedwait({*WARNING_SIGNALS, *TERMINATION_SIGNALS, signal.SIGCHLD}, _POLL_S)
            ended = processes.reap_children()
            if self._place.attempt.superseded_by() is not None:
                self._kill_by(0)  # an older copy of a job that goes on elsewhere
            elif received is not None and received.si_signo != signal.SIGCHLD:
                self._receive(received.si_signo)
            elif child not in ended:
                self._look_at_peers()
            if child not in ended and self._kill_at is not None and time.monotonic() >= self._kill_at:
                ended |= processes.kill_descendants()
                ended.setdefault(child, -signal.SIGKILL)
            code = ended.get(child)
        processes.kill_descendants()
        # As a shell says it. The launcher may be one, of which a child was signalled first.
        code = code if code >= 0 else 128 - code
        if self._end is None and code - 128 in TERMINATION_SIGNALS:
            # Slurm signals each process of a step, this one perhaps later.
            received = signal.sigtimedwait({*WARNING_SIGNALS, *TERMINATION_SIGNALS}, _LATE_S)
            if received is not None:
                self._receive(received.si_signo)
            elif not self._place.attempt.stop.exists():
                self._end = ("cancelled", "the scheduler ended the job")
        cause, message = self._end or (None, None)
        return TorchrunResult(code, cause, message, self._taken_back, self._job_end)

    def _receive(self, number: int) -> None:
        allocation = self._place.allocation
        if number in (signal.SIGINT, signal.SIGHUP) or (number == signal.SIGTERM and allocation is None):
            self._end = self._end or self._why_ended(None)
            with contextlib.suppress(ProcessLookupError):  # it may have ended before us
                os.kill(self._child, signal.SIGTERM)
            return
        facts = allocation.facts() if allocation else None
        if facts is not None and not facts.running:
            self._ending(facts)
        elif number == signal.SIGUSR2 and self._is_early(facts):
            _say(f"the time limit's warning came early; ranks stop {self._place.lead_s:g} s before it")
        else:
            if facts is not None and facts.end is not None:
                self._job_end = min(self._job_end, facts.end)
            self._ask_ranks_to_leave(signal.Signals(number).name)

    def _ending(self, facts: AllocationFacts) -> None:
        """Slurm is ending the job: ranks have until its SIGKILL to leave, and we to write that down."""
        allocation = self._place.allocation
        if allocation is None or self._end is not None:
            return
        self._taken_back = facts.restarts > allocation.restart
        self._end = self._why_ended(facts)
        _say(f"{self._end[0]}: {self._end[1]}")
        self._ask_ranks_to_leave("the job's end")
        self._kill_by(max(1.0, allocation.kill_wait_s() - _MARGIN_S))

    def _why_ended(self, facts: AllocationFacts | None) -> tuple[str, str]:
        if self._taken_back and self._place.allocation is not None:
            down = self._place.allocation.nodes_down()
            if down:
                return "lost", f"Slurm has lost {', '.join(down)}, and took the job back into its queue"
            return "preempted", "Slurm took the job back into its queue"
        if (facts is not None and facts.timed_out) or time.time() > self._place.deadline - _LIMIT_S:
            return "timeout", "the scheduler ended the job at its time limit"
        return "cancelled", "the scheduler ended the job"

    def _is_early(self, facts: AllocationFacts | None) -> bool:
        """Whether this is but Slurm's warning of the time limit, which the ranks know to the second."""
        end, lead_s = self._place.deadline, self._place.lead_s
        same_end = facts is None or facts.end is None or abs(facts.end - end) < _EARLY_S / 10
        return same_end and end - lead_s - _EARLY_S <= time.time() < end - lead_s

    def _ask_ranks_to_leave(self, what: str) -> None:
        end, now = self._place.deadline, time.time()
        cause = "deadline" if now >= end - self._place.lead_s - _EARLY_S else "preempted"
        word = {"cause": cause, "time": now, "node": self._place.node, "seen": what}
        if create_exclusive(self._place.attempt.stop, word):
            _say(f"{what}: asked the ranks to save and leave ({cause})")

    def _look_at_peers(self) -> None:
        codes = peers.node_exit_codes(self._place.attempt, self._place.nodes) if self._place.nodes > 1 else {}
        failed = [node for node, code in codes.items() if code and node != self._place.node]
        if failed and self._kill_at is None:
            _say(f"node {failed[0]} has ended with code {codes[failed[0]]}")
            self._kill_by(_PEER_S)

    def _kill_by(self, within_s: float) -> None:
        at = time.monotonic() + within_s
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} agent: {text}", flush=True)
