"""The stop of a `command`: a signal to its processes, at the same time on all nodes. Standard library only.

A process that is signalled late may be killed by the signal while it exits, because its peers were signalled
before. The time limit is known to all nodes. Node 0 reads the user's `STOP` file, and records a stop in
the folder that the other nodes read every `LISTED_EVERY_S` seconds: it has a time in the future.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.shared_folder import StopFile
from jobs.core import processes
from jobs.node import peers
from jobs.node.node_log import log_line
from jobs.node.peers import LISTED_EVERY_S

_ALL_NODES_S = 1.5 * LISTED_EVERY_S
"""Time in which all nodes have read the folder."""
_FIRST_READS_S = 1.0
"""Seconds between two reads of the `STOP` file, in the first seconds of a run."""


class CommandStop:
    """The stop of the processes of one node.

    Args:
        attempt: the attempt of the command.
        node: rank of this node, of `nodes`.
        stop_signal: the signal; None for the trainer, whose ranks get none.
        stop_time: time of the stop before the time limit, in seconds since the epoch.
    """

    def __init__(
        self,
        attempt: Attempt,
        node: int,
        nodes: int,
        stop_signal: signal.Signals | None,
        stop_time: float,
    ) -> None:
        self._attempt = attempt
        stop_file = RunDir(attempt.path.parent.parent).stop
        self._stop_file = StopFile(stop_file, _FIRST_READS_S) if node == 0 else None
        self._nodes = nodes
        self._signal = stop_signal
        self._planned: tuple[str, float] = ("deadline", stop_time)
        self._begun = False
        self._signalled: set[int] = set()

    def wait_s(self, most_s: float) -> float:
        """Seconds until the stop that is planned, at most `most_s`."""
        if self._signal is None or self._begun:
            return most_s
        return min(most_s, max(0.0, self._planned[1] - time.time()))

    def requested(self, by_peers: tuple[str, float] | None) -> tuple[str, str] | None:
        """Reason and cause of a stop that is due now, else None. `by_peers`: a stop that a node recorded."""
        if self._begun:
            return None
        if by_peers is not None:
            self._planned = min(self._planned, by_peers, key=lambda stop: stop[1])
        elif self._stop_file is not None and self._stop_file.exists():
            self._stop_file = None
            at = math.ceil(time.time() + (_ALL_NODES_S if self._nodes > 1 else 0.0))
            if at < self._planned[1]:
                self._planned = ("stopped", at)
                peers.record_stop(self._attempt, "stopped", at)
        cause = self._planned[0]
        if time.time() < self._planned[1]:
            return None
        return "time limit" if cause == "deadline" else "a request to stop", cause

    def begin(self, cause: str) -> None:
        """Signal the processes from now on; the other nodes follow, where only this one was warned."""
        if self._signal is None or self._begun:
            return
        self._begun = True
        if time.time() < self._planned[1]:
            peers.record_stop(self._attempt, cause, int(time.time()))

    def signal_processes(self, torchrun: int) -> None:
        """Signal each process of the command, a child of torchrun, once."""
        if not self._begun or self._signal is None:
            return
        for pid in processes.children_of(torchrun):
            if pid not in self._signalled:
                self._signalled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self._signal)
                    log_line(f"{self._signal.name} to process {pid} of the command")
