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
from dataclasses import dataclass, field
from typing import Any

import torch

from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.rank_heartbeat import heartbeat

COMPUTE, INPUT, COMM, COMM_TRANSFER, OPTIMIZER, CHECKPOINT, OTHER = range(7)
"""Phases in the order of `disttrain.records.steps.PHASES`. The clock counts all exposed communication as
COMM; only a comparison of all ranks separates wait and transfer (`telemetry.step_log`)."""
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
"""Seconds between the instants from which the start of steps is measured. On CUDA, `elapsed_time` gives
milliseconds in single precision: 4 us coarse after 60 s, but 8 ms after 28 h."""

PhaseSeconds = list[float]
"""Seconds in each phase of one step, indexed by the constants up to OTHER."""


@dataclass(slots=True)
class ClockedStep:
    """Where the time of a step went, in seconds."""

    phases: PhaseSeconds = field(default_factory=lambda: [0.0] * _PHASES)
    calls: dict[int, list[float]] = field(default_factory=dict)
    """By phase, each CONTROL_SYNC, SHARD_SYNC and REPLICATE_SYNC, in order."""
    start_s: float = 0.0
    """Start, from the first `start()` of the clock."""
    gap_s: float = 0.0
    """Wall time before the step that belongs to no step."""

    @property
    def exposed_s(self) -> float:
        """Exposed communication."""
        return self.phases[COMM] + sum(map(sum, self.calls.values()))


class StepClock:
    """Marks the beginnings of phases with instants: times of the host `now`, or events of a device."""

    def __init__(self, now: Callable[[], Any] = time.perf_counter) -> None:
        self.instant = now
        """A timestamp."""
        self.phase = OTHER
        """The current phase."""
        self._gap_from: Any = None
        self._anchor: Any = None
        self._anchor_s = 0.0
        """Seconds from the first `start()` to the anchor."""
        self._closed: deque[StepMarks] = deque()
        self.step: StepMarks
        """The step under way."""

    def start(self) -> None:
        """Begin the next step now, in phase OTHER. Time since the last `end_step` is its `gap_s`."""
        now = self.instant()
        self.phase = OTHER
        if self._anchor is None:
            self._anchor = self._gap_from = now
        self.step = StepMarks(self, self._gap_from, now)

    def switch(self, phase: int) -> None:
        """End the current phase and begin `phase`."""
        self.phase = phase
        self.step.marks.append((phase, self.instant()))

    def end_step(self) -> None:
        """Close the step and begin the next one at the same instant, in phase OTHER."""
        self._gap_from = end = self.instant()
        self.step.marks.append((OTHER, end))
        self.step.is_closed = True
        self._closed.append(self.step)
        self.phase, self.step = OTHER, StepMarks(self, end, end)

    def finished(self, await_steps: int = 0) -> list[ClockedStep]:
        """Each closed step not yet returned, oldest first, as far as the device has passed their ends; the
        first `await_steps` steps are waited for."""
        if await_steps and self._closed:
            self.wait(self._closed[min(await_steps, len(self._closed)) - 1].end)
        finished = []
        while self._closed and self._passed(self._closed[0].end):
            closed = self._closed.popleft()
            since_anchor_s = self.between_s(self._anchor, closed.begin)
            start_s = self._anchor_s + since_anchor_s
            if since_anchor_s > ANCHOR_EVERY_S:
                self._anchor, self._anchor_s = closed.begin, start_s
            finished.append(closed.read(start_s))
        return finished

    def between_s(self, begin: Any, end: Any) -> float:
        """Seconds between two instants."""
        seconds: float = end - begin
        return seconds

    def wait(self, instant: Any) -> None:
        """Wait for the device to pass `instant`."""

    def _passed(self, instant: Any) -> bool:
        return True


class StepMarks:
    """The beginnings of the phases of a step, and its end, which the device may not have passed yet."""

    def __init__(self, clock: StepClock, gap_from: Any, begin: Any) -> None:
        self._clock, self._gap_from = clock, gap_from
        self.marks: list[tuple[int, Any]] = [(OTHER, begin)]
        self.is_closed = False

    @property
    def begin(self) -> Any:
        """The instant of its beginning."""
        return self.marks[0][1]

    @property
    def end(self) -> Any:
        """The instant of its end."""
        return self.marks[-1][1]

    def read(self, start_s: float = 0.0) -> ClockedStep:
        """The seconds of the step; waits for the device."""
        between_s = self._clock.between_s
        self._clock.wait(self.end)
        step = ClockedStep(start_s=start_s, gap_s=between_s(self._gap_from, self.begin))
        for (phase, begin), (_, end) in itertools.pairwise(self.marks):
            if phase < _PHASES:
                step.phases[phase] += between_s(begin, end)
            else:
                step.calls.setdefault(phase, []).append(between_s(begin, end))
        return step


class CudaClock(StepClock):
    """The step clock of a CUDA rank: events on the compute stream.

    A phase begins when the device passes its event. Input time is therefore the time that the device waited
    for input, not the time that the host spent on loading: loading hidden by compute counts as 0.
    """

    def __init__(self) -> None:
        super().__init__(_recorded_event)

    def between_s(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1e3

    def wait(self, instant: torch.cuda.Event) -> None:
        with heartbeat.collective():  # the device may wait for other ranks
            instant.synchronize()

    def _passed(self, instant: torch.cuda.Event) -> bool:
        return instant.query()


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


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
    return CudaClock() if device.type == "cuda" else StepClock()
