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
from typing import NamedTuple, Protocol

import torch

from disttrain.runtime import heartbeat
from disttrain.runtime.fully_shard_hooks import Dimension

COMPUTE, INPUT, COMM, COMM_TRANSFER, OPTIMIZER, CHECKPOINT, OTHER = range(7)
"""Phases in the order of `disttrain.records.steps.PHASES`. The clock counts all exposed communication as
COMM; only a comparison of all ranks separates wait and transfer (`telemetry.comm_split`)."""
CONTROL_SYNC = 7
"""Phase of the clock alone: control synchronisation, a call of all ranks together (stop agreement, reduction,
checkpoint, broadcast of buffers, all-gather or reduce-scatter of a shard). Counts as communication. The ranks
compare each call separately, because different ranks may be late to different calls."""
SHARD_SYNC, REPLICATE_SYNC = 8, 9
"""Phases of the clock alone: a call within this rank's shard group, and one within its replicate group, of a
mesh that has both. Counts as communication. The ranks of the group compare each call separately."""
PHASE_OF_DIMENSION: dict[Dimension | None, int] = {
    None: CONTROL_SYNC,
    "shard": SHARD_SYNC,
    "replicate": REPLICATE_SYNC,
}
"""Phase of a wait for communication over a dimension of the mesh; None: over all ranks."""
COMMUNICATION = frozenset({COMM, COMM_TRANSFER, CONTROL_SYNC, SHARD_SYNC, REPLICATE_SYNC})
"""Phases in which a rank may wait for other ranks."""
_PHASES = 7

ANCHOR_EVERY_S = 60.0
"""Seconds between the events from which a CUDA clock measures the start of steps. `elapsed_time` gives
milliseconds in single precision: 4 us coarse after 60 s, but 8 ms after 28 h."""

PhaseSeconds = list[float]
"""Seconds in each phase of one step, indexed by the constants above. A clock appends the seconds of each
CONTROL_SYNC in order."""


class ClockedStep(NamedTuple):
    """A closed step; `start_s` is in seconds since the first `start()` of the clock."""

    start_s: float
    phases: PhaseSeconds
    within: dict[int, list[float]]
    """Seconds of each SHARD_SYNC and of each REPLICATE_SYNC, in order."""
    gap_s: float
    """Wall time before the step that belongs to no step."""


class StepClock(Protocol):
    """The interface of a step clock."""

    @property
    def phase(self) -> int:
        """The current phase."""

    def start(self) -> None:
        """Begin the next step now, in phase OTHER. Time since the last `end_step` is its `gap_s`."""

    def switch(self, phase: int) -> None:
        """End the current phase and begin `phase`."""

    def end_step(self) -> None:
        """Close the step and begin the next one at the same instant, in phase OTHER."""

    def finished(self, await_steps: int = 0) -> list[ClockedStep]:
        """Each closed step not yet returned, oldest first.

        Steps that the device has not finished are returned by a later call, except that the first
        `await_steps` steps are waited for.
        """


class HostClock:
    """The step clock of a CPU rank."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._origin: float | None = None
        self._last = self._began = self._gap_s = 0.0
        self.phase = OTHER
        self._parts = _Parts()
        self._done: list[ClockedStep] = []

    def start(self) -> None:
        self._last = self._now()
        if self._origin is None:
            self._origin = self._began = self._last
        self._gap_s += self._last - self._began
        self._began = self._last
        self.phase = OTHER
        self._parts = _Parts()

    def switch(self, phase: int) -> None:
        now = self._now()
        self._parts.add(self.phase, now - self._last)
        self._last = now
        self.phase = phase

    def end_step(self) -> None:
        self.switch(OTHER)
        assert self._origin is not None, "start() comes first"
        self._done.append(self._parts.closed(self._began - self._origin, self._gap_s))
        self._parts = _Parts()
        self._began, self._gap_s = self._last, 0.0

    def finished(self, await_steps: int = 0) -> list[ClockedStep]:
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
        self._gap_from: torch.cuda.Event | None = None
        self._pending: deque[tuple[torch.cuda.Event, list[tuple[int, torch.cuda.Event]]]] = deque()

    def start(self) -> None:
        self.phase = OTHER
        self._marks = [(OTHER, self._event())]
        self._gap_from = self._gap_from or self._marks[0][1]
        if self._anchor is None:
            self._anchor = self._marks[0][1]

    def switch(self, phase: int) -> None:
        self.phase = phase
        self._marks.append((phase, self._event()))

    def end_step(self) -> None:
        boundary = self._event()
        self.phase = OTHER
        self._marks.append((OTHER, boundary))
        assert self._gap_from is not None, "start() comes first"
        self._pending.append((self._gap_from, self._marks))
        self._marks, self._gap_from = [(OTHER, boundary)], boundary

    def finished(self, await_steps: int = 0) -> list[ClockedStep]:
        if await_steps and self._pending:
            with heartbeat.collective():  # the device may wait for other ranks
                self._pending[min(await_steps, len(self._pending)) - 1][1][-1][1].synchronize()
        done = []
        while self._pending and self._pending[0][1][-1][1].query():
            gap_from, marks = self._pending.popleft()
            parts = _Parts()
            for (phase, begin), (_, end) in itertools.pairwise(marks):
                parts.add(phase, begin.elapsed_time(end) / 1e3)
            start = marks[0][1]
            done.append(parts.closed(self._start_s(start), gap_from.elapsed_time(start) / 1e3))
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


class _Parts:
    """The seconds of one step as they grow."""

    def __init__(self) -> None:
        self._phases: PhaseSeconds = [0.0] * _PHASES
        self._within: dict[int, list[float]] = {}

    def add(self, phase: int, seconds: float) -> None:
        if phase < _PHASES:
            self._phases[phase] += seconds
        elif phase == CONTROL_SYNC:
            self._phases.append(seconds)
        else:
            self._within.setdefault(phase, []).append(seconds)

    def closed(self, start_s: float, gap_s: float) -> ClockedStep:
        return ClockedStep(start_s, self._phases, self._within, gap_s)


@contextmanager
def control_sync(clock: StepClock, phase: int = CONTROL_SYNC) -> Iterator[None]:
    """Count the block as `phase`, then return to the phase before it."""
    before = clock.phase
    clock.switch(phase)
    try:
        yield
    finally:
        clock.switch(before)


def make_clock(device: torch.device) -> StepClock:
    return CudaClock() if device.type == "cuda" else HostClock()
