"""Stop requests: a signal, the time limit, a `STOP` file, a request of the agent. Imports without torch.

A request has no immediate effect. Each rank records its own; at a step boundary all ranks compare them
(`disttrain.engine.agreement`), so that the same step is the last one on every rank.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import get_args

from disttrain.config.stop_time import stop_time
from disttrain.records.exit_causes import StopCause
from disttrain.records.json_files import read_json_or_none
from disttrain.records.shared_folder import StopFile

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers send to a job, to one process of it or to all, before they end it."""

CAUSES: tuple[StopCause, ...] = get_args(StopCause)
"""Causes in rising precedence: of several requests, the last one here names the cause."""


def ignore_stop_signals() -> None:
    """Ignore stop signals and SIGINT in a helper process of a rank: they reach every process of the job, and
    the rank ends its helpers."""
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """Records received signals; the handlers do nothing else."""

    def __init__(self) -> None:
        self.counted: Collection[int] = SIGNALS
        """The signals that count as a stop request. In a job the agent (`jobs.node.torchrun`) handles the
        scheduler's signals and writes a file for its ranks; only torchrun's SIGTERM counts then."""
        self._received: set[int] = set()

    def install(self) -> None:
        """Install the handlers: from here on these signals do not end the process. Main thread only."""
        for number in SIGNALS:
            signal.signal(number, self.record)

    def record(self, number: int, _frame: FrameType | None = None) -> None:
        """Signal handler: record the signal."""
        self._received.add(number)

    @property
    def received(self) -> bool:
        """Whether a counted signal was received."""
        return not self._received.isdisjoint(self.counted)


class StopRequests:
    """Stop requests as this rank sees them.

    Parameters
    ----------
    stop_file : created by the user; None on ranks that do not look for it
    agent_file : created by the node's agent, with the cause; None without an agent
    signals : signals of this process
    lead_s : seconds before the job's time limit at which ranks stop
    check_s : seconds between two looks for `stop_file`, at first; 0: at each call of `pending`
    """

    def __init__(
        self,
        stop_file: Path | None,
        agent_file: Path | None,
        signals: StopSignals,
        lead_s: float,
        check_s: float,
    ) -> None:
        self._stop_file = StopFile(stop_file, check_s) if stop_file else None
        self._agent_file = agent_file
        self._signals = signals
        self._stop_time = stop_time(os.environ, lead_s, time.time())

    def pending(self) -> int:
        """0 without a request, else 1 + the index of its cause in `CAUSES`."""
        cause = self._cause()
        return 1 + CAUSES.index(cause) if cause else 0

    def _cause(self) -> StopCause | None:
        if self._stop_file is not None and self._stop_file.exists():
            return "stopped"
        if self._stop_time is not None and time.time() >= self._stop_time:
            return "deadline"
        if self._agent_file is not None and self._agent_file.exists():
            cause = (read_json_or_none(self._agent_file) or {}).get("cause")
            return cause if cause in CAUSES else "preempted"
        return "preempted" if self._signals.received else None
