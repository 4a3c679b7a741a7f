"""Heartbeat of this rank: a thread writes the position of the main thread every second, for the agent.

The main thread assigns attributes and calls nothing: a step costs two clock readings. Without a folder for
heartbeats in the environment, as in a run by hand, no thread starts. Imports without torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
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


class _Position:
    """Position of the main thread; the writing thread reads it."""

    def __init__(self, timeouts_s: Mapping[Phase, float], step: int = 0) -> None:
        self._timeouts_s = timeouts_s
        self.ended = threading.Event()
        self.at: tuple[Phase, int, float] = ("setup", step, time.monotonic())
        """Phase, steps done, and the time since when. Replaced as a whole: readers see one state."""
        self.part_written_at = 0.0
        """Time at which the thread that writes checkpoints last wrote a part of one."""
        self.collectives = 0
        """Collectives that the main thread has entered and not left."""
        self.communicates: Callable[[], bool] = lambda: False
        self._step_s = [0.0] * _KEPT_STEPS
        self._steps = 0
        self._longest_s: dict[Phase, float] = {}

    def enter(self, phase: Phase) -> Phase:
        before, step, since = self.at
        now = time.monotonic()
        if before != "step":
            self._longest_s[before] = max(now - since, self._longest_s.get(before, 0.0))
        self.at = (phase, step, now)
        return before

    def step_done(self, step: int) -> None:
        now = time.monotonic()
        phase, _, since = self.at
        self._step_s[self._steps % _KEPT_STEPS] = now - since
        self._steps += 1
        self.at = (phase, step, now)

    def limit_s(self, phase: Phase) -> float:
        if phase == "step" and self._steps == 0:
            phase = "setup"  # the first step compiles, and opens connections
        return max(FACTOR * self._usual_s(phase), self._timeouts_s[phase])

    def _usual_s(self, phase: Phase) -> float:
        """99th percentile of the newest steps, or the longest time in another phase."""
        if phase != "step":
            return self._longest_s.get(phase, 0.0)
        durations = sorted(self._step_s[: min(self._steps, _KEPT_STEPS)])
        return durations[max(0, -(-99 * len(durations) // 100) - 1)] if durations else 0.0


_position: _Position | None = None
_thread: threading.Thread | None = None


def start(rank: int, timeouts_s: Mapping[Phase, float], step: int = 0) -> None:
    """Begin in phase `setup`, and write heartbeats if the environment names a folder.

    `timeouts_s`: for each phase, the shortest time in seconds that counts as a hang. `step`: steps done.
    """
    global _position, _thread
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    stop()
    _position = _Position(timeouts_s, step)
    arguments = (Path(folder), rank, _position, threading.get_ident())
    _thread = threading.Thread(target=_write, args=arguments, name="heartbeat", daemon=True)
    _thread.start()


def stop() -> None:
    """End the heartbeats and remove the newest one: the agent does not watch this rank any more."""
    global _position
    if _position is not None and _thread is not None:
        _position.ended.set()
        _thread.join()
        _position = None


def enter(phase: Phase) -> None:
    """Begin `phase` now."""
    if _position is not None:
        _position.enter(phase)


@contextmanager
def within(phase: Phase) -> Iterator[None]:
    """`phase` within the block, then the phase before."""
    if _position is None:
        yield
        return
    before = _position.enter(phase)
    try:
        yield
    finally:
        _position.enter(before)


def progress() -> None:
    """Renew the time of the current phase, of which a part is done: the limit holds for each part."""
    if _position is not None:
        _position.enter(_position.at[0])


def checkpoint_part_written() -> None:
    """Renew the time of phase `checkpoint`, in which the main thread waits. The writing thread calls it."""
    if _position is not None:
        _position.part_written_at = time.monotonic()


def step_done(step: int) -> None:
    """Optimizer step `step` is done, and the next one begins."""
    if _position is not None:
        _position.step_done(step)


@contextmanager
def collective() -> Iterator[None]:
    """This rank may wait for other ranks within the block."""
    if (position := _position) is None:
        yield
        return
    position.collectives += 1
    try:
        yield
    finally:
        position.collectives -= 1


def communicates_while(condition: Callable[[], bool]) -> None:
    """The rank is in a collective also while `condition` is true. The writing thread calls it."""
    if _position is not None:
        _position.communicates = condition


def _write(folder: Path, rank: int, position: _Position, main_thread: int) -> None:
    _beat(folder, rank, position, main_thread)
    while not position.ended.wait(INTERVAL_S):
        _beat(folder, rank, position, main_thread)
    with suppress(OSError):
        heartbeat_path(folder, rank).unlink()


def _beat(folder: Path, rank: int, position: _Position, main_thread: int) -> None:
    """Write one heartbeat. On an error, such as a full `/dev/shm`, remove the older one: it would age."""
    phase, step, since = position.at
    if phase == "checkpoint":
        since = max(since, position.part_written_at)
    waiting = position.collectives > 0 or position.communicates()
    heartbeat = Heartbeat(
        rank, os.getpid(), phase, step, since, position.limit_s(phase), waiting,
        _line(main_thread), time.monotonic(),
    )  # fmt: skip
    try:
        write_heartbeat(folder, heartbeat)
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
