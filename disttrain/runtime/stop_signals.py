"""StopRequests to stop: a signal, a deadline, a `STOP` file, word of an agent. Imports without torch.

Nothing is done when one comes in. Each rank remembers its own; at a step boundary all ranks ask for them
together (`disttrain.hooks.stop_agreement`), and the same step is the last one on every rank.
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
from disttrain.records.causes import StopCause
from disttrain.records.json_files import read_json_or_none

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they end a job, to one process of it or to all."""

CAUSES: tuple[StopCause, ...] = get_args(StopCause)
"""In rising rank: where requests of several kinds meet, the last one here names the cause."""


class StopSignals:
    """Remembers which signals came; the handlers do nothing else."""

    def __init__(self) -> None:
        self.heeded: Collection[int] = SIGNALS
        """The signals that count as a stop request. In a job the agent (`jobs.node.torchrun`) handles the
        scheduler's signals and writes a file for its ranks; only torchrun's SIGTERM counts then."""
        self._came: set[int] = set()

    def install(self) -> None:
        """From here on, the signals that ask for an end do not end this process. Main thread only."""
        for number in SIGNALS:
            signal.signal(number, self.note)

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        self._came.add(number)

    @property
    def received(self) -> bool:
        """Whether one came that counts."""
        return not self._came.isdisjoint(self.heeded)


class StopRequests:
    """This rank's view of what asks the run to stop: `stop_file` for the user, `asked` for the agents.

    One rank of each node looks for the files: a file system may keep from one node what another one wrote.
    """

    def __init__(
        self, stop_file: Path, asked: Path, signals: StopSignals, lead_s: float, looks: bool
    ) -> None:
        self._stop_file = stop_file
        self._asked = asked
        self._signals = signals
        self._stop_time = stop_time(os.environ, lead_s, time.time())
        self._looks = looks

    def pending(self) -> int:
        """0, or one more than the index of the cause in `CAUSES`."""
        if self._looks and self._stop_file.exists():
            return 1 + CAUSES.index("stopped")
        if self._stop_time is not None and time.time() >= self._stop_time:
            return 1 + CAUSES.index("deadline")
        if self._looks and self._asked.exists():
            cause = (read_json_or_none(self._asked) or {}).get("cause")
            return 1 + CAUSES.index(cause if cause in CAUSES else "preempted")
        if self._signals.received:
            return 1 + CAUSES.index("preempted")
        return 0
