"""Stop the processes of a `command` on one node by a signal. Standard library only."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from disttrain.records.run_directory import Attempt
from disttrain.records.shared_folder import StopFile
from jobs.core import processes
from jobs.node import peers
from jobs.node.allocation import NodeContext, log_line

_ALL_NODES_S = 1.5 * peers.LISTED_EVERY_S
"""Time in which all nodes have read the folder of exits."""
_FIRST_READS_S = 1.0
"""Seconds between two reads of the `STOP` file, in the first seconds of a run."""
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")


class CommandStop:
    """The stop of the processes of a `command` on one node, by a signal at the same time on all nodes.

    A process that is signalled late may be killed by the signal while it exits, because its peers were
    signalled before. The time limit is known to all nodes. Node 0 reads the user's `STOP` file, and records a
    stop in the folder that the other nodes read every `LISTED_EVERY_S` seconds: it has a time in the future.
    """

    def __init__(
        self, node: NodeContext, attempt: Attempt, number: signal.Signals, time_limit: float
    ) -> None:
        """`time_limit`: time of the stop before the time limit, in seconds since the epoch."""
        self._attempt = attempt
        self._signal = number
        self._nodes = len(node.hosts)
        self._stop_file = StopFile(node.run.stop, _FIRST_READS_S) if node.rank == 0 else None
        self._planned: tuple[str, float] = ("deadline", time_limit)
        self._begun = False
        self._signalled: set[int] = set()
        """Processes that were signalled, and those above them, which may have more to do."""
        self._stopped: set[int] = set()
        """Processes of the command that handle the signal, or whose ranks do."""

    def wait_s(self, most_s: float) -> float:
        """Seconds until the stop that is planned, at most `most_s`."""
        return most_s if self._begun else min(most_s, max(0.0, self._planned[1] - time.time()))

    def requested(self, by_peers: tuple[str, float] | None) -> tuple[str, str] | None:
        """Reason and cause of a stop that is due now, else None. `by_peers`: a stop that a node recorded."""
        if self._begun:
            return None
        if by_peers is not None:
            self._planned = min(self._planned, by_peers, key=lambda stop: stop[1])
        elif self._stop_file is not None and self._stop_file.exists():
            self._stop_file = None
            self.plan("stopped")
        cause = self._planned[0]
        if time.time() < self._planned[1]:
            return None
        return "time limit" if cause == "deadline" else "a request to stop", cause

    def plan(self, cause: str) -> None:
        """Plan a stop for the time at which all nodes know of it, unless an earlier one is planned."""
        at = math.ceil(time.time() + (_ALL_NODES_S if self._nodes > 1 else 0.0))
        if not self._begun and at < self._planned[1] and self._planned[0] != cause:
            self._planned = (cause, at)
            peers.record_stop(self._attempt, cause, at)

    def begin(self, cause: str) -> None:
        """Signal the processes from now on; the other nodes follow, where only this one was warned."""
        if not self._begun and time.time() < self._planned[1]:
            peers.record_stop(self._attempt, cause, int(time.time()))
        self._begun = True

    def signal_processes(self, started: Sequence[int]) -> None:
        """Signal the `targets` of each of the processes of the command once, and what a shell script starts
        after one that the signal ends, such as a preparation of the data."""
        for pid in {*started} - self._stopped if self._begun else ():
            for target in {*targets(pid, self._signal)} - self._signalled:
                self._signalled.update(processes.lineage(target, pid))
                if processes.handles(target, self._signal):
                    self._stopped.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, self._signal)
                    log_line(f"{self._signal.name} to process {target} of the command")


def command_processes(launcher: int, memory: Path) -> list[int]:
    """The processes of a command below a launcher, by the files of `jobs.node.interpreter` in the folder of
    the node. In a container, processes of its runtime may be between."""
    pids = sorted(int(path.name.rpartition("-")[2]) for path in memory.glob("process-*"))
    return [pid for pid in pids if launcher in processes.lineage(pid, launcher)]


def targets(pid: int, number: int) -> list[int]:
    """The processes that save when a process of the command is asked to stop.

    A launcher that the command has started would end its ranks, and a shell without a trap, or a launcher of
    a single process, would die of the signal. So these are the ranks of such a launcher, else the uppermost
    process that is none of the others.
    """
    ranks = [] if is_rank(pid) else uppermost(pid, is_rank)

    def is_meant(each: int) -> bool:
        return processes.handles(each, number) or not (_is_shell(each) or _is_launcher(each))

    return ranks or uppermost(pid, is_meant) or [pid]


def uppermost(pid: int, is_meant: Callable[[int], bool]) -> list[int]:
    """The processes of a tree with the property, without those below one that has it."""
    if is_meant(pid):
        return [pid]
    return [target for child in processes.children_of(pid) for target in uppermost(child, is_meant)]


def _is_shell(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS
    return False


def _is_launcher(pid: int) -> bool:
    """Whether a child is another program with the end of the command line of this process, as that of
    `accelerate launch train.py` is."""
    words = _read(pid, "cmdline").split(b"\0")
    others = (_read(child, "cmdline").split(b"\0") for child in processes.children_of(pid))
    return any(each != words and each[-2:] == words[-2:] for each in others)  # the last one is empty


def is_rank(pid: int) -> bool:
    """Whether a process has the variables that a launcher gives each rank."""
    return b"\0LOCAL_RANK=" in b"\0" + _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
