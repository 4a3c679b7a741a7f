"""Step records of one rank: one JSON line an optimizer step, written in batches, off the hot path."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from disttrain.records import CLASSES, SCHEMA_VERSION
from disttrain.rundir import to_json
from disttrain.telemetry.phases import COMM, COMM_TRANSFER, Parts, StepClock
from disttrain.telemetry.waits import CommSplit

_DECIMALS = 7  # a tenth of a microsecond: what a host clock can tell apart


@dataclass(frozen=True)
class _Done:
    """A step that is over, as this rank alone knows it."""

    step: int
    start: float
    parts: Parts
    loss: float
    lr: float


class StepRecorder:
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
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a")  # noqa: SIM115 -- closed in close()
        self._clock = clock
        self._samples = samples_per_step
        self.warm_step = warmup_steps
        self._split = split
        self._noted: deque[tuple[int, torch.Tensor, float]] = deque()
        self._undivided: deque[_Done] = deque()
        self._comparing = 0  # of the undivided, those whose comparison is on its way
        self.durations = array("d")
        self.measured: Parts = [0.0] * len(CLASSES)

    @property
    def waiting(self) -> int:
        """Steps noted and not yet taken from the clock."""
        return len(self._noted)

    def note(self, step: int, loss: torch.Tensor, lr: float) -> None:
        """Call as the last thing before the clock's `end_step`: the copy of the loss is then done when
        the step is."""
        self._noted.append((step, loss.to("cpu", non_blocking=True), lr))
        if self._split is not None:
            self._split.step_done()

    def collect(self, await_steps: int = 0) -> None:
        """Take the steps that the device has finished from the clock, waiting for the first `await_steps`."""
        for start, parts in self._clock.finished(await_steps):
            step, loss, lr = self._noted.popleft()
            done = _Done(step, start, parts, float(loss), lr)
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
            self._split.compare([done.parts[COMM] for done in steps])
            self._comparing += due
        for transfer in self._split.ready(wait=everything):
            done = self._undivided.popleft()
            self._comparing -= 1
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
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _record(self, done: _Done) -> None:
        if done.step > self.warm_step:
            self.durations.append(sum(done.parts))
            for index, seconds in enumerate(done.parts):
                self.measured[index] += seconds
        self._write(done, divided=self._split is not None)

    def _write(self, done: _Done, *, divided: bool) -> None:
        parts = done.parts
        named: dict[str, float | None] = dict(zip(CLASSES, (round(p, _DECIMALS) for p in parts), strict=True))
        if not divided:
            named[CLASSES[COMM]] = named[CLASSES[COMM_TRANSFER]] = None
        exposed = None if self._split is None else round(parts[COMM] + parts[COMM_TRANSFER], _DECIMALS)
        record = {
            "schema_version": SCHEMA_VERSION,
            "step": done.step,
            "start_s": round(done.start, _DECIMALS),
            "step_s": round(sum(parts), _DECIMALS),
            **named,
            "comm_exposed_s": exposed,
            "samples": self._samples,
            "loss": done.loss,
            "lr": done.lr,
        }
        self._file.write(to_json(record) + "\n")
