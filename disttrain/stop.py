"""Requests to stop: a signal, a deadline, a `STOP` file. Imports without torch.

Nothing is done when one comes in. Each rank remembers its own; at a step boundary all ranks ask for them
together (`disttrain.boundary`), and the same step is the last one on every rank.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import get_args

from disttrain.records import StopCause

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they end a job, to one process of it or to all."""

CAUSES: tuple[StopCause, ...] = get_args(StopCause)
"""In rising rank: where requests of several kinds meet, the last one here names the cause."""

DEADLINE_VARIABLES = ("DISTTRAIN_DEADLINE", "SLURM_JOB_END_TIME")
"""When the job's time is up, in seconds since the epoch; the first one that is set counts."""


class Signals:
    """Remembers that a signal came; the handlers do nothing else."""

    def __init__(self) -> None:
        self.received: int | None = None

    def install(self) -> None:
        """From here on, the signals that ask for an end do not end this process. Main thread only."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number


def deadline(environment: Mapping[str, str], lead_s: float, now: float) -> float | None:
    """When to stop, in seconds since the epoch: `lead_s` before the job's time is up.

    A job with little time trains through three quarters of it all the same. None: there is no limit, or
    none that can be read.
    """
    for name in DEADLINE_VARIABLES:
        try:
            end = float(environment[name])
        except (KeyError, ValueError):
            continue
        return end - min(lead_s, max(0.0, end - now) / 4)
    return None


class Requests:
    """This rank's view of what asks the run to stop.

    One rank of each node looks for the file: a file system may keep from one node what another one wrote.
    """

    def __init__(self, stop_file: Path, signals: Signals, lead_s: float, looks: bool) -> None:
        self._stop_file = stop_file
        self._signals = signals
        self._deadline = deadline(os.environ, lead_s, time.time())
        self._looks = looks

    def pending(self) -> int:
        """0, or one more than the index of the cause in `CAUSES`."""
        if self._looks and self._stop_file.exists():
            return 1 + CAUSES.index("stopped")
        if self._deadline is not None and time.time() >= self._deadline:
            return 1 + CAUSES.index("deadline")
        if self._signals.received is not None:
            return 1 + CAUSES.index("preempted")
        return 0
