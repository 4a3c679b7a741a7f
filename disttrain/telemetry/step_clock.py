"""Step clock: every instant of a step belongs to exactly one phase.

`switch` begins a phase and thereby ends the previous one, so phases have neither gap nor overlap and sum to
the step. On a CPU, `switch` reads the monotonic clock. On CUDA it records an event on the current stream,
which is read once the device has passed it. The clock never synchronizes within a step.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from disttrain.runtime import heartbeat

COMPUTE, INPUT, COMM, COMM_TRANSFER, OPTIMIZER, CHECKPOINT, OTHER = range(7)
"""Phases in the order of `disttrain.records.steps.PHASES`. The clock counts all exposed communication as
COMM; only a comparison of all ranks separates wait and transfer (`telemetry.comm_split`)."""
CONTROL_SYNC = 7
"""Phase of the clock alone: control synchronisation, a call of all ranks together (stop agreement, reduction,
checkpoint, broadcast of buffers, all-gather or reduce-scatter of a shard). Counts as communication. The ranks
compare each call separately, because different ranks may be late to different calls."""
COMMUNICATION = frozenset({COMM, COMM_TRANSFER, CONTROL_SYNC})
"""Phases in which a rank may wait for other ranks."""
_PHASES = 7

ANCHOR_EVERY_S = 60.0
"""Seconds between the events from which a CUDA clock measures the start of steps. `elapsed_time` gives
milliseconds in single precision: 4 us coarse after 60 s, but 8 ms after 28 h."""

PhaseSeconds = list[float]
"""Seconds in each phase of one step, indexed by the constants above. A clock appends the seconds of each
CONTROL_SYNC in order."""


class StepClock(Protocol):
    """The interface of a step clock."""

    @property
    def phase(self) -> int:
        """The current phase."""

    def start(self) -> None:
        """Begin the next step now, in phase OTHER. Time since the last `end_step` belongs to no step."""

    def switch(self, phase: int) -> None:
        """End the current phase and begin `phase`."""

    def end_step(self) -> None:
        """Close the step and begin the next one at the same instant, in phase OTHER."""

    def finished(self, await_steps: int = 0) -> list[tuple[float, PhaseSeconds]]:
        """(start, phases) of each closed step not yet returned, oldest first.

        `start` is in seconds since the first `start()`. Steps that the device has not finished are returned
        by a later call, except that the first `await_steps` steps are waited for.
        """


class HostClock:
    """The step clock of a CPU rank."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._origin: float | None = None
        self._last = self._began = 0.0
        self.phase = OTHER
        self._parts: PhaseSeconds = [0.0] * _PHASES
        self._done: list[tuple[float, PhaseSeconds]] = []

    def start(self) -> None:
        self._last = self._began = self._now()
        if self._origin is None:
            self._origin = self._last
        self.phase = OTHER
        self._parts = [0.0] * _PHASES

    def switch(self, phase: int) -> None:
        now = self._now()
        _add(self._parts, self.phase, now - self._last)
        self._last = now
        self.phase = phase

    def end_step(self) -> None:
        self.switch(OTHER)
        assert self._origin is not None, "start() comes first"
        self._done.append((self._began - self._origin, self._parts))
        self._parts = [0.0] * _PHASES
        self._began = self._last

    def finished(self, await_steps: int = 0) -> list[tuple[float, PhaseSeconds]]:
        done, self._done = self._done, []
        return done


class CudaClock:
    """The step clock of a CUDA rank: events on the compute stream.

    A phase begins when the device passes its event. Input time is therefore the time that the device waited
    for input, not the time that the host spent on loading: loading hidden by compute counts as 0.
    """

    def __init__(self) -> None:
        self.phase = OTHER
        self._anchor: torch.cuda.Event | None = None
        self._anchor_s = 0.0
        """Seconds from the first `start()` to the anchor."""
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        self._pending: deque[list[tuple[int, torch.cuda.Event]]] = deque()

    def start(self) -> None:
        self.phase = OTHER
        self._marks = [(OTHER, self._event())]
        if self._anchor is None:
            self._anchor = self._marks[0][1]

    def switch(self, phase: int) -> None:
        self.phase = phase
        self._marks.append((phase, self._event()))

    def end_step(self) -> None:
        boundary = self._event()
        self.phase = OTHER
        self._marks.append((OTHER, boundary))
        self._pending.append(self._marks)
        self._marks = [(OTHER, boundary)]

    def finished(self, await_steps: int = 0) -> list[tuple[float, PhaseSeconds]]:
        if await_steps and self._pending:
            with heartbeat.collective():  # the device may wait for other ranks
                self._pending[min(await_steps, len(self._pending)) - 1][-1][1].synchronize()
        done = []
        while self._pending and self._pending[0][-1][1].query():
            marks = self._pending.popleft()
            parts = [0.0] * _PHASES
            for (phase, begin), (_, end) in itertools.pairwise(marks):
                _add(parts, phase, begin.elapsed_time(end) / 1e3)
            done.append((self._start_s(marks[0][1]), parts))
        return done

    def _start_s(self, start: torch.cuda.Event) -> float:
        """Seconds from the first `start()` to the event `start`."""
        assert self._anchor is not None, "start() comes first"
        since_anchor_s = self._anchor.elapsed_time(start) / 1e3
        start_s = self._anchor_s + since_anchor_s
        if since_anchor_s > ANCHOR_EVERY_S:
            self._anchor, self._anchor_s = start, start_s
        return start_s

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _add(parts: PhaseSeconds, phase: int, seconds: float) -> None:
    if phase == CONTROL_SYNC:
        parts.append(seconds)
    else:
        parts[phase] += seconds


@contextmanager
def control_sync(clock: StepClock) -> Iterator[None]:
    """Count the block as CONTROL_SYNC, then return to the phase before it."""
    before = clock.phase
    clock.switch(CONTROL_SYNC)
    try:
        yield
    finally:
        clock.switch(before)


def make_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
