"""Heartbeat of this rank: a thread writes the position of the main thread every second, for the agent.

The main thread assigns attributes alone: a step costs two clock readings. Without a folder for heartbeats in
the environment, as in a run by hand, no thread starts. Imports without torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from disttrain.records.heartbeat import (
    FOLDER_VARIABLE,
    INTERVAL_S,
    Heartbeat,
    Phase,
    heartbeat_path,
    write_heartbeat,
)

FACTOR = 3.0
"""A hang: this many times the usual duration, and at least the configured time."""
_KEPT_STEPS = 1000
"""Newest steps whose durations give the 99th percentile."""


class RankHeartbeat:
    """Position of the main thread, which one thread writes while an agent watches."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._collectives = 0
        """Collectives that the main thread has entered and not left."""
        self._begin({}, 0)

    def _begin(self, timeouts_s: Mapping[Phase, float], step: int) -> None:
        self._timeouts_s = timeouts_s
        self.at: tuple[Phase, int, float] = ("setup", step, time.monotonic())
        """Phase, steps done, and the time since when. Replaced as a whole: readers see one state."""
        self._part_written_at = 0.0
        self._communicates: Callable[[], bool] = lambda: False
        self._step_s: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._longest_s: dict[Phase, float] = {}

    def start(self, rank: int, timeouts_s: Mapping[Phase, float], step: int = 0) -> None:
        """Begin in phase `setup`, and write heartbeats if the environment names a folder.

        `timeouts_s`: for each phase, the shortest time in seconds that counts as a hang. `step`: steps done.
        """
        self.stop()
        self._begin(timeouts_s, step)
        if folder := os.environ.get(FOLDER_VARIABLE):
            self._ended.clear()
            arguments = (Path(folder), rank, threading.get_ident())
            self._thread = threading.Thread(target=self._write, args=arguments, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the heartbeats and remove the newest one: the agent does not watch this rank any more."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        self._begin({}, 0)  # the function of `communicates_while` may hold a model

    def enter(self, phase: Phase) -> None:
        """Begin `phase` now."""
        before, step, since = self.at
        now = time.monotonic()
        if before != "step":
            self._longest_s[before] = max(now - since, self._longest_s.get(before, 0.0))
        self.at = (phase, step, now)

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """`phase` within the block, then the phase before."""
        before = self.at[0]
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def progress(self) -> None:
        """Renew the time of the current phase, of which a part is done: the limit holds for each part."""
        self.enter(self.at[0])

    def checkpoint_part_written(self) -> None:
        """Renew the time of phase `checkpoint`, in which the main thread waits. The writing thread of
        checkpoints calls it."""
        self._part_written_at = time.monotonic()

    def step_done(self, step: int) -> None:
        """Optimizer step `step` is done, and the next one begins."""
        now = time.monotonic()
        phase, _, since = self.at
        self._step_s.append(now - since)
        self.at = (phase, step, now)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """This rank may wait for other ranks within the block."""
        self._collectives += 1
        try:
            yield
        finally:
            self._collectives -= 1

    def communicates_while(self, condition: Callable[[], bool]) -> None:
        """The rank is in a collective also while `condition` is true. The writing thread calls it."""
        self._communicates = condition

    def limit_s(self, phase: Phase) -> float:
        """Seconds in `phase`, or in one step, after which the rank counts as hung."""
        steps_s = sorted(self._step_s)
        if phase == "step" and not steps_s:
            phase = "setup"  # the first step compiles, and opens connections
        percentile_99 = steps_s[-(-99 * len(steps_s) // 100) - 1] if phase == "step" else 0.0
        return max(FACTOR * max(percentile_99, self._longest_s.get(phase, 0.0)), self._timeouts_s[phase])

    def _write(self, folder: Path, rank: int, main_thread: int) -> None:
        self.beat(folder, rank, main_thread)
        while not self._ended.wait(INTERVAL_S):
            self.beat(folder, rank, main_thread)
        with suppress(OSError):
            heartbeat_path(folder, rank).unlink()

    def beat(self, folder: Path, rank: int, main_thread: int) -> None:
        """Write one heartbeat. On an error, such as a full `/dev/shm`, remove the older one: it would age."""
        phase, step, since = self.at
        if phase == "checkpoint":
            since = max(since, self._part_written_at)
        written = Heartbeat(
            rank, os.getpid(), phase, step, since, self.limit_s(phase),
            self._collectives > 0 or self._communicates(), _line(main_thread), time.monotonic(),
        )  # fmt: skip
        try:
            write_heartbeat(folder, written)
        except OSError:  # also once the agent has ended and removed the folder
            with suppress(OSError):
                heartbeat_path(folder, rank).unlink()


def _line(thread: int) -> str:
    """The innermost line of a thread: `loader.py:57 in __next__`."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


heartbeat = RankHeartbeat()
"""The heartbeat of this process."""
