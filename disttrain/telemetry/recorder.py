"""Step records of one rank: one JSON line an optimizer step, written in batches, off the hot path."""

from __future__ import annotations

from array import array
from collections import deque
from pathlib import Path

import torch

from disttrain.records import CLASSES, SCHEMA_VERSION
from disttrain.rundir import to_json
from disttrain.telemetry.phases import COMM, Parts, StepClock

_DECIMALS = 7  # a tenth of a microsecond: what a host clock can tell apart


class StepRecorder:
    """Pairs each closed step of the clock with its loss and learning rate, keeps the sums, writes the lines.

    `measured` sums leave out the first `warmup_steps` steps; `durations` holds the measured steps' seconds.
    """

    def __init__(
        self, path: Path, clock: StepClock, *, samples_per_step: int, warmup_steps: int, measures_comm: bool
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a")  # noqa: SIM115 -- closed in close()
        self._clock = clock
        self._samples = samples_per_step
        self._warmup = warmup_steps
        self._measures_comm = measures_comm
        self._noted: deque[tuple[int, torch.Tensor, float]] = deque()
        self.durations = array("d")
        self.measured: Parts = [0.0] * len(CLASSES)

    @property
    def waiting(self) -> int:
        """Steps noted and not yet written."""
        return len(self._noted)

    def note(self, step: int, loss: torch.Tensor, lr: float) -> None:
        """Call as the last thing before the clock's `end_step`: the copy of the loss is then done when
        the step is."""
        self._noted.append((step, loss.to("cpu", non_blocking=True), lr))

    def collect(self, wait: bool = False) -> None:
        """Turn the steps that the device has finished into lines; with `wait`, all of them."""
        lines = []
        for start, parts in self._clock.finished(wait):
            step, loss, lr = self._noted.popleft()
            if step > self._warmup:
                self.durations.append(sum(parts))
                for index, seconds in enumerate(parts):
                    self.measured[index] += seconds
            lines.append(self._line(step, start, parts, float(loss), lr))
        if lines:
            self._file.write("".join(lines))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _line(self, step: int, start: float, parts: Parts, loss: float, lr: float) -> str:
        named: dict[str, float | None] = dict(zip(CLASSES, (round(p, _DECIMALS) for p in parts), strict=True))
        if not self._measures_comm:
            named[CLASSES[COMM]] = None
        record = {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "start_s": round(start, _DECIMALS),
            "step_s": round(sum(parts), _DECIMALS),
            **named,
            "samples": self._samples,
            "loss": loss,
            "lr": lr,
        }
        return to_json(record) + "\n"
