"""Run one node's torchrun to its end, while handling the scheduler's signals and the failures of other nodes.

SIGTERM may be a warning (pre-emption with a grace period, the time limit ahead) or the end of the job (a
cancel, the time limit, a requeue). So the agent queries the scheduler whether the job still runs. A warning
becomes a file in memory of the node, which the ranks poll; a signal to torchrun would end them. A
scheduler may signal this process alone or every process of the job step: torchrun and the ranks survive
both. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttrain.errors import message_of
from disttrain.records.heartbeat import stop_request_path
from disttrain.records.json_files import create_exclusive, read_json_or_none
from disttrain.records.run_directory import Attempt
from jobs.core import journal, processes
from jobs.core.rank_positions import SCRIPT, describe_hang
from jobs.core.signals import wait_for_signal
from jobs.fabric.description import Gpu
from jobs.node import hang, peers
from jobs.node.allocation import (
    TERMINATION_SIGNALS,
    WARNING_SIGNALS,
    Allocation,
    AllocationFacts,
    NodeContext,
    log_line,
)
from jobs.node.command_stop import CommandStop, command_processes

if TYPE_CHECKING:
    from jobs.node.command_sampler import CommandWatch

_POLL_S = 1.0
_SIGNAL_DELAY_S = 2.0
"""The scheduler signals each process of a step separately; after torchrun dies of a signal, wait this long
for ours."""
_OTHER_STACKS_S = 2.0
"""Time in which all nodes have read their stacks; ranks that lose a connection then have another one."""
_KILL_MARGIN_S = 2.0
"""Time left for recording the exit, between our SIGKILL to the ranks and the scheduler's."""
_EARLY_WARNING_S = 90.0
"""The warning before the time limit may come this many seconds too early: a batch system may check every
30 s, with a margin of 60 s."""
_LIMIT_TOLERANCE_S = 5.0
"""An end this close to the time limit, for which the scheduler gives no reason, counts as `timeout`."""
CANCELLED_BY_SCHEDULER = "the scheduler ended the job: by scancel, or by a rule of the site"


@dataclass(frozen=True)
class TorchrunResult:
    """How torchrun ended on one node."""

    code: int
    cause: str | None = None
    """Cause of an end from outside: `timeout`, `cancelled`, or after a requeue `preempted` or `lost`."""
    message: str | None = None
    requeued: bool = False
    """Whether the scheduler has requeued the job by itself."""
    lost_hosts: tuple[str, ...] | None = None
    """Hosts at fault, where the scheduler ended a lost job; None if the silent nodes are at fault."""
    job_end: float | None = None
    """The latest known end of the job's time, in seconds since the epoch."""


@dataclass(frozen=True)
class Torchrun:
    """The torchrun of one node of an attempt, and its time limit."""

    node: NodeContext
    attempt: Attempt
    command: Sequence[str]
    env: Mapping[str, str]
    deadline: float
    """End of the job's time as known at its start, in seconds since the epoch."""
    lead_s: float
    """Seconds before that end at which the ranks stop."""
    memory: Path
    """Folder of this node in memory: heartbeats of the ranks, and the request that they stop."""
    stop_signal: signal.Signals | None = None
    """Signal by which the processes of a `command` are asked to stop; None for the trainer, whose ranks poll
    a file."""
    idle_limit_s: float | None = None
    """Seconds of silence after which an idle rank of a `command` counts as hung."""
    gpus: Callable[[], Sequence[Gpu]] = tuple
    """The GPUs of a `command` on this node."""


def cause_of_end(end_cause: str | None, deadline: float | None) -> tuple[str, str]:
    """Cause and message where the scheduler ended the job and did not requeue it.

    `end_cause` is its answer, and `deadline` the end of the job's time in seconds since the epoch.
    """
    if end_cause == "lost":
        return "lost", "the batch shell of the job ended before its agents"
    if end_cause == "timeout" or (deadline is not None and time.time() > deadline - _LIMIT_TOLERANCE_S):
        return "timeout", "the scheduler ended the job at its time limit"
    return "cancelled", CANCELLED_BY_SCHEDULER


def run_torchrun(torchrun: Torchrun, log: int) -> TorchrunResult:
    """Run torchrun to its end and kill what it leaves behind. `log` is a file descriptor for its output.

    The caller has blocked `WARNING_SIGNALS`, `TERMINATION_SIGNALS` and SIGCHLD.
    """
    child = processes.spawn(torchrun.command, log=log, env=torchrun.env)
    return _TorchrunMonitor(torchrun, child).watch()


class _TorchrunMonitor:
    def __init__(self, torchrun: Torchrun, child: int) -> None:
        self._torchrun = torchrun
        self._attempt = torchrun.attempt
        self._node = torchrun.node.rank
        self._allocation = torchrun.node.allocation
        nodes = len(torchrun.node.hosts)
        self._child = child
        self._job_end = torchrun.deadline
        self._kill_at: float | None = None
        self._external: tuple[str, str] | None = None
        """Cause and message of an end from outside."""
        self._requeued = False
        self._lost_hosts: tuple[str, ...] | None = None
        self._peers = peers.PeerWatch(torchrun.attempt, self._node, nodes)
        self._command: CommandStop | None = None
        self._watch: CommandWatch | None = None
        if torchrun.stop_signal:
            from jobs.node.command_sampler import CommandWatch  # takes a second, while torchrun starts

            planned_at = torchrun.deadline - torchrun.lead_s
            self._command = CommandStop(torchrun.node, torchrun.attempt, torchrun.stop_signal, planned_at)
            self._watch = CommandWatch(torchrun)
        self._hangs = hang.HangWatch(torchrun.memory)
        self._unconnected = hang.UnconnectedRanks(nodes)
        self._hung = False
        self._late: dict[str, Any] | None = None
        """Record of the ranks' positions when half of a limit was used up; None while they make progress."""
        self._had_ranks = False
        self._ranks_succeeded = False
        """Whether all ranks of this node have exited with code 0, while torchrun has not ended."""

    def watch(self) -> TorchrunResult:
        """Wait for torchrun, and handle signals meanwhile."""
        code = None
        while code is None:
            wait_s = self._command.wait_s(_POLL_S) if self._command else _POLL_S
            received = wait_for_signal({*WARNING_SIGNALS, *TERMINATION_SIGNALS, signal.SIGCHLD}, wait_s)
            ended = processes.reap_children()
            signalled = received is not None and received != signal.SIGCHLD
            self._peers.read(at_once=signalled)
            if self._peers.superseded:
                self._kill_within(0)  # the job was started again elsewhere
            elif received is not None and signalled:
                self._handle_signal(received)
            elif self._child not in ended:
                self._check_peers()
                self._check_cancel()
                self._watch_command()
                self._check_hang()
                self._check_exit_barrier()
            if self._child not in ended and self._kill_at is not None and time.monotonic() >= self._kill_at:
                if positions := self._hangs.positions():
                    self._record_positions(hang.positions_record(positions, self._hung))
                ended |= processes.kill_descendants()
                ended.setdefault(self._child, -signal.SIGKILL)
            code = ended.get(self._child)
        if self._watch:
            self._watch.close()
        processes.kill_descendants()
        if self._ranks_succeeded:
            code = 0
        elif code and self._late is not None:
            self._record_positions(self._late)
        code = code if code >= 0 else 128 - code  # a launcher that is a shell returns 128 + N
        self._explain_signal(code)
        if self._unconnected.ranks is not None:
            apart = {"ranks": self._unconnected.ranks}
            peers.record(self._attempt, self._attempt.node_unconnected(self._node), apart)
        cause, message = self._external or (None, None)
        return TorchrunResult(code, cause, message, self._requeued, self._lost_hosts, self._job_end)

    def _explain_signal(self, code: int) -> None:
        """Find the cause of an end by signal that reached torchrun before it reached this process."""
        if self._external is not None or code - 128 not in TERMINATION_SIGNALS:
            return
        received = wait_for_signal({*WARNING_SIGNALS, *TERMINATION_SIGNALS}, _SIGNAL_DELAY_S)
        if received is not None:
            self._handle_signal(received)
        elif not self._attempt.stop.exists():
            self._external = ("cancelled", CANCELLED_BY_SCHEDULER)

    def _handle_signal(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGHUP) or (
            number == signal.SIGTERM and self._allocation is None
        ):
            self._external = self._external or self._external_cause(None)
            with contextlib.suppress(ProcessLookupError):  # torchrun may have ended before
                os.kill(self._child, signal.SIGTERM)
            return
        facts = self._allocation.facts() if self._allocation else None
        if facts is not None and not facts.running:
            self._end_job(facts)
        elif number == signal.SIGUSR2 and self._is_early_warning(facts):
            lead_s = self._torchrun.lead_s
            log_line(
                f"the warning before the time limit came early; ranks stop {lead_s:g} s before the limit"
            )
        else:
            if facts is not None and facts.end is not None:
                self._job_end = min(self._job_end, facts.end)
            self._request_stop(signal.Signals(number).name)

    def _end_job(self, facts: AllocationFacts) -> None:
        """The scheduler is ending the job: have the ranks save, and kill them before its SIGKILL."""
        if self._allocation is None or self._external is not None:
            return
        self._requeued = facts.restarts > self._allocation.restart
        self._end_run(self._external_cause(facts), "end of the job", self._allocation)

    def _check_cancel(self) -> None:
        """End a run that a user cancels, and whose job goes on with its other runs."""
        node = self._torchrun.node
        if node.packing is None or node.allocation is None or self._external is not None:
            return
        if journal.is_cancelled(node.run, node.submission):
            self._end_run(("cancelled", "cancelled by a user"), "cancel", node.allocation)

    def _end_run(self, external: tuple[str, str], reason: str, allocation: Allocation) -> None:
        self._external = external
        log_line(f"{external[0]}: {external[1]}")
        self._request_stop(reason)
        self._kill_within(max(1.0, allocation.kill_wait_s() - _KILL_MARGIN_S))

    def _external_cause(self, facts: AllocationFacts | None) -> tuple[str, str]:
        if self._requeued and self._allocation is not None:
            down = self._allocation.nodes_down()
            if down:
                self._lost_hosts = tuple(down)
                return "lost", f"the scheduler lost {', '.join(down)} and requeued the job"
            return "preempted", "the scheduler requeued the job"
        end_cause = facts.end_cause if facts is not None else None
        self._lost_hosts = () if end_cause == "lost" else None
        return cause_of_end(end_cause, self._torchrun.deadline)

    def _is_early_warning(self, facts: AllocationFacts | None) -> bool:
        """Whether a signal only announces the time limit, for which the ranks stop by their own clocks."""
        end, lead_s = self._torchrun.deadline, self._torchrun.lead_s
        same_end = facts is None or facts.end is None or abs(facts.end - end) < _EARLY_WARNING_S / 10
        return same_end and end - lead_s - _EARLY_WARNING_S <= time.time() < end - lead_s

    def _request_stop(self, reason: str, cause: str | None = None) -> None:
        """Write `stop.json`, unless it exists: the ranks save and stop at their next step boundary."""
        now = time.time()
        if cause is None:
            warned_from = self._torchrun.deadline - self._torchrun.lead_s - _EARLY_WARNING_S
            cause = "deadline" if now >= warned_from else "preempted"
        request = {"cause": cause, "time": now, "node": self._node, "seen": reason}
        try:
            created = create_exclusive(stop_request_path(self._torchrun.memory), request)
        except OSError as error:
            log_line(f"{reason}: the ranks cannot be stopped: {message_of(error)}")
            return
        if not created:
            return
        log_line(f"{reason}: the ranks will save and stop ({cause})")
        # for the cause of the end; the ranks read the file in memory
        peers.record(self._attempt, self._attempt.stop, request)
        if self._command:
            self._command.begin(cause)

    def _watch_command(self) -> None:
        """Ask a command to stop and signal its processes, and look at them and their connections.

        The trainer's ranks stop by themselves, sample the node and check their process group.
        """
        if self._command is None or self._watch is None:
            return
        started = command_processes(self._child, self._torchrun.memory)
        self._unconnected.sample(started)
        self._watch.sample(started)
        request = self._command.requested(self._peers.stop)
        if request and request[1] == "hung":
            self._end_silence(self._watch)
            return
        if request:
            self._request_stop(*request)
        self._command.signal_processes(started)

    def _end_silence(self, watch: CommandWatch) -> None:
        """All nodes at the same time: save the stacks of the ranks, and end them."""
        if self._hung:
            return
        self._hung = True
        positions = watch.save_stacks()
        log_line(f"hung: {describe_hang(positions)}" if positions else "hung: this node has no rank")
        self._record_positions(hang.positions_record(positions, hung=True))
        self._kill_within(_OTHER_STACKS_S)

    def _check_peers(self) -> None:
        """Give torchrun `PEER_GRACE_S` to end once another node has failed."""
        if self._peers.failed and self._kill_at is None:
            log_line(f"node {self._peers.failed[0]} has ended with code {self._peers.failed[1]}")
            self._kill_within(peers.PEER_GRACE_S)

    def _check_exit_barrier(self) -> None:
        """Give torchrun `PEER_GRACE_S` to end once the run has ended and all ranks of this node have exited.

        torchrun then waits up to 300 s for those of the other nodes, of which one may have been killed. The
        ranks have exited with code 0: after a failed rank, torchrun ends without this wait.
        """
        if processes.has_children(self._child):
            self._had_ranks = True
        elif self._had_ranks and not self._ranks_succeeded:
            metrics = read_json_or_none(self._torchrun.node.run.metrics) or {}
            ended = metrics.get("status") in ("completed", "stopped")
            self._ranks_succeeded = ended and metrics.get("attempt") == self._attempt.number
            if self._ranks_succeeded:
                self._kill_within(peers.PEER_GRACE_S)

    def _check_hang(self) -> None:
        """End the ranks if one of this node hangs; warn once half of its time is used up."""
        positions = self._hangs.positions()
        if self._hung or self._external is not None:
            return
        if self._watch and not positions:
            positions = self._watch.positions()
        if (late := hang.overdue(positions)) and self._command and late[0].phase == SCRIPT:
            self._command.plan("hung")
        elif late:
            self._hung = True
            log_line(f"hung: {describe_hang(late)}")
            self._kill_within(0)
        elif late := hang.overdue(positions, share=0.5):
            if self._late is None:
                self._late = hang.positions_record(positions, hung=False)
                hang.warn(self._attempt, self._node, late)
        elif self._late is not None and positions:  # without positions, the ranks have ended
            self._late = None
            hang.withdraw_warning(self._attempt, self._node)

    def _record_positions(self, positions: Mapping[str, Any]) -> None:
        """Record positions of this node's ranks before their end, unless the end came from outside."""
        if self._external is None:
            peers.record(self._attempt, self._attempt.node_ranks(self._node), positions)

    def _kill_within(self, within_s: float) -> None:
        at = time.monotonic() + within_s
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)
