"""Step records of one rank: one JSON line an optimizer step, written in batches, off the hot path."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.steps import PHASES
from disttrain.telemetry.comm_split import UNMEASURED, CommSplit
from disttrain.telemetry.json_lines import JsonLinesWriter
from disttrain.telemetry.step_aggregate import DECIMALS, StepAccumulator
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, OTHER, PhaseSeconds, StepClock
from disttrain.telemetry.step_series import StepSeries

WINDOW = 100
"""Steps in one record, once each step has had its own for long enough."""


@dataclass(frozen=True)
class _Done:
    """A step that is over, as this rank alone knows it."""

    step: int
    start: float
    parts: PhaseSeconds
    exposed_s: list[float]
    """Its communication: in the backward pass (which may be UNMEASURED), and in each meeting."""
    loss: float
    lr: float

    @property
    def comm_seen(self) -> bool:
        return self.exposed_s[0] != UNMEASURED

    def unsee(self) -> None:
        """What of the communication was seen means nothing by itself: it goes to the class of all unknown."""
        self.exposed_s[0] = UNMEASURED
        self.parts[OTHER] += self.parts[COMM]
        self.parts[COMM] = 0.0


class StepLog:
    """Pairs each closed step of the clock with its loss and learning rate, keeps the sums, writes the lines.

    `measured` sums leave out the steps up to `warm_step`; `durations` holds the measured steps' seconds.
    Of a resumed run both begin with those of the steps before. With `split`, a step is recorded once the
    ranks have compared their communication in it (`divide`).
    """

    def __init__(
        self,
        path: Path,
        clock: StepClock,
        *,
        samples_per_step: int,
        warmup_steps: int,
        split: CommSplit | None,
        full_records: int = 100_000,
    ) -> None:
        self._file = JsonLinesWriter(path)
        self._clock = clock
        self._samples = samples_per_step
        self.warm_step = warmup_steps
        self.profiled: frozenset[int] = frozenset()
        """Steps that are recorded but not measured, besides the first ones."""
        self.kept: dict[int, PhaseSeconds] = {}
        """Of those steps, the seconds in each class."""
        self._split = split
        self._noted: deque[tuple[int, torch.Tensor, float, bool]] = deque()
        self.comm_unseen = False
        """Whether there is a measured step in which a rank's communication was not seen."""
        self._full_records = full_records
        self._window = StepAccumulator()
        self._window_seen = False
        """Whether the communication of the steps in it is known."""
        self._undivided: deque[_Done] = deque()
        self._comparing = 0  # of the undivided, those whose comparison is on its way
        self.durations = array("d")
        self.ratios = StepSeries()
        """Exposed communication / compute of each measured step."""
        self.measured: PhaseSeconds = [0.0] * len(PHASES)

    @property
    def waiting(self) -> int:
        """Steps noted and not yet taken from the clock."""
        return len(self._noted)

    def note(self, step: int, loss: torch.Tensor, lr: float, comm_seen: bool = True) -> None:
        """Call as the last thing before the clock's `end_step`: the copy of the loss is then done when
        the step is. Without `comm_seen`, the clock does not know all communication of this step as such."""
        self._noted.append((step, loss.to("cpu", non_blocking=True), lr, comm_seen))
        if self._split is not None:
            self._split.step_done()

    def collect(self, await_steps: int = 0) -> None:
        """Take the steps that the device has finished from the clock, waiting for the first `await_steps`."""
        for start, parts in self._clock.finished(await_steps):
            step, loss, lr, comm_seen = self._noted.popleft()
            exposed_s = [parts[COMM], *parts[len(PHASES) :]]
            del parts[len(PHASES) :]
            parts[COMM] = sum(exposed_s)
            done = _Done(step, start, parts, exposed_s, float(loss), lr)
            if not comm_seen:
                done.unsee()
            if self._split is None:
                self._record(done)
            else:
                self._undivided.append(done)

    def divide(self, *, everything: bool = False) -> None:
        """All ranks together: compare their communication, and record the steps for which that is done.

        `everything` waits until all that was noted is recorded.
        """
        if self._split is None:
            self.collect(self.waiting if everything else 0)
            return
        due = self._split.due(everything=everything)
        self.collect(max(0, due - (len(self._undivided) - self._comparing)))
        if due:
            steps = islice(self._undivided, self._comparing, self._comparing + due)
            self._split.compare([done.exposed_s for done in steps])
            self._comparing += due
        for transfer in self._split.ready(wait=everything):
            done = self._undivided.popleft()
            self._comparing -= 1
            if transfer is None:
                done.unsee()
            else:
                done.parts[COMM] -= transfer
                done.parts[COMM_TRANSFER] = transfer
            self._record(done)

    def abandon(self) -> None:
        """Write what this rank knows of the steps that the ranks will not compare any more."""
        self.collect()
        for done in self._undivided:
            self._write(done, divided=False)
        self._undivided.clear()
        self._comparing = 0

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def open_window(self) -> dict[str, Any] | None:
        """The record, so far, of the steps that are in no line yet. It travels in checkpoints: one that ended
        the window would make short lines of frequent checkpoints, as many as there are of those."""
        return self._window_record() if self._window.steps else None

    def take_up(self, window: dict[str, Any]) -> None:
        """Begin with the `open_window` of an earlier attempt, whose clock this one knows nothing of."""
        self._file.add(window | {"start_s": None})

    def close(self) -> None:
        self._end_window()
        self._file.close()

    def _record(self, done: _Done) -> None:
        if done.step in self.profiled:
            self.kept[done.step] = done.parts
        if done.step > self.warm_step and done.step not in self.profiled:
            self.durations.append(sum(done.parts))
            self.comm_unseen |= not done.comm_seen
            self._note_ratio(done)
            for index, seconds in enumerate(done.parts):
                self.measured[index] += seconds
        self._write(done, divided=True)

    def _note_ratio(self, done: _Done) -> None:
        if self._split is not None and done.comm_seen and done.parts[COMPUTE] > 0:
            self.ratios.add(done.step, (done.parts[COMM] + done.parts[COMM_TRANSFER]) / done.parts[COMPUTE])

    def _write(self, done: _Done, *, divided: bool) -> None:
        seen = self._split is not None and done.comm_seen
        alone = done.step <= self._full_records or done.step in self.profiled
        if not alone and (divided or not seen):
            if seen != self._window_seen or self._window.last <= self.warm_step < done.step:
                self._end_window()  # the steps of one window are measured all, or none
            self._window_seen = seen
            self._window.add(done.step, done.start, done.parts, done.loss, done.lr)
            if self._window.steps == WINDOW:
                self._end_window()
            return
        self._end_window()  # lines are in the order of the steps
        record = {
            "schema_version": SCHEMA_VERSION,
            "step": done.step,
            "start_s": round(done.start, DECIMALS),
            "step_s": round(sum(done.parts), DECIMALS),
            **_named(done.parts, seen=seen, divided=divided),
            "samples": self._samples,
            "loss": done.loss,
            "lr": done.lr,
        }
        self._file.add(record)

    def _end_window(self) -> None:
        if self._window.steps:
            self._file.add(self._window_record())
            self._window = StepAccumulator()

    def _window_record(self) -> dict[str, Any]:
        named = _named(self._window.sums, seen=self._window_seen, divided=True)
        return self._window.as_record(named, self._samples)


def _named(parts: PhaseSeconds, *, seen: bool, divided: bool) -> dict[str, float | None]:
    """The fields of a record: of communication only what is known."""
    named: dict[str, float | None] = dict(zip(PHASES, (round(p, DECIMALS) for p in parts), strict=True))
    if not (seen and divided):
        named[PHASES[COMM]] = named[PHASES[COMM_TRANSFER]] = None
    exposed = round(parts[COMM] + parts[COMM_TRANSFER], DECIMALS) if seen else None
    return {**named, "comm_exposed_s": exposed}
