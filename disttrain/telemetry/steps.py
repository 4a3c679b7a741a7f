"""The steps of a rank: the result and the record of each, their lines, and series of their figures."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.steps import PHASES, bin_of
from disttrain.telemetry.step_clock import (
    COMM,
    COMM_TRANSFER,
    COMPUTE,
    CONTROL_SYNC,
    OTHER,
    ClockedStep,
    PhaseSeconds,
    StepMarks,
)

UNMEASURED = -1.0
"""In place of seconds: this rank could not measure its communication in the passes of the step."""
DECIMALS = 7
"""Of seconds in step records: 0.1 us, the resolution of the host's clock."""
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step on this rank. Tensors are scalars that stay on the device: reading one, or a number
    of seconds, waits for it."""

    step: int
    """1 is the first step of the run."""
    loss: Tensor
    """Mean loss over this rank's samples."""
    lr: float
    """Learning rate of the step."""
    grad_norm: Tensor | None = None
    """Gradient norm of the global batch before clipping; None where neither clipping nor the check for
    non-finite gradients needs it."""
    skipped: Tensor | None = None
    """Whether the optimizer left the parameters unchanged because the gradient norm was not finite; None
    without that check."""
    comm_reason: str | None = None
    """Reason why some communication of the step was not timed; None if all was."""
    extra: dict[str, Tensor | float] = field(default_factory=dict)
    """Further values of the step by name: in its record, the log line and the sinks."""
    marks: StepMarks | None = field(default=None, repr=False)
    """The step on the clock."""

    @property
    def step_s(self) -> float | None:
        """Seconds of the step; None until the trainer has closed it, as for the others."""
        return sum(step.phases) if (step := self._clocked()) else None

    @property
    def compute_s(self) -> float | None:
        """Seconds of compute."""
        return step.phases[COMPUTE] if (step := self._clocked()) else None

    @property
    def comm_s(self) -> float | None:
        """Seconds of exposed communication; None also where some was not timed."""
        return step.exposed_s if (step := self._clocked()) and not self.comm_reason else None

    def _clocked(self) -> ClockedStep | None:
        return self.marks.read() if self.marks is not None and self.marks.is_closed else None


@dataclass(slots=True)
class StepRecord:
    """A step of this rank."""

    step: int
    lr: float
    values: dict[str, Any]
    """`loss`, `grad_norm` and `skipped`, as far as the step has them, and each `extra`: numbers once the
    clock has closed the step, before it tensors whose copies to the host may be under way."""
    comm_measured: bool
    start_s: float = 0.0
    gap_s: float = 0.0
    phases: PhaseSeconds = field(default_factory=list)
    """COMM has all exposed communication, until the ranks compare it."""
    calls: dict[int, list[float]] = field(default_factory=dict)
    """Seconds that the ranks compare: those of `ClockedStep`, and before each CONTROL_SYNC the exposed
    communication in the passes, or UNMEASURED."""

    @classmethod
    def of(cls, result: StepResult) -> StepRecord:
        """Begin the record of a step, and the copies of its values to the host."""
        named = {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "skipped": result.skipped,
            **result.extra,
        }
        values = {
            name: value.to("cpu", non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in named.items()
            if value is not None
        }
        return cls(result.step, result.lr, values, result.comm_reason is None)

    def close(self, clocked: ClockedStep, *, compares_passes: bool = True) -> None:
        """Take the seconds, and read the values. `clocked` is not used any more. Without `compares_passes`,
        all exposed communication in the passes will count as waiting."""
        self.values = {name: float(value) for name, value in self.values.items()}
        self.start_s, self.gap_s = clocked.start_s, clocked.gap_s
        exposed_s, phases, calls = clocked.exposed_s, clocked.phases, clocked.calls
        calls[CONTROL_SYNC] = [phases[COMM] if compares_passes else 0.0, *calls.get(CONTROL_SYNC, ())]
        phases[COMM] = exposed_s
        self.phases, self.calls = phases, calls
        if not self.comm_measured:
            self.discard_comm()

    @property
    def step_s(self) -> float:
        return sum(self.phases)

    def discard_comm(self) -> None:
        """Communication was only partly measured; move it to `other`."""
        self.comm_measured, self.calls[CONTROL_SYNC][0] = False, UNMEASURED
        self.phases[OTHER] += self.phases[COMM]
        self.phases[COMM] = 0.0

    def take_transfer(self, minima: Sequence[float]) -> None:
        """Take the minimum over ranks of each call, which is transfer. UNMEASURED: one rank measured none."""
        if min(minima, default=0.0) < 0:
            self.discard_comm()
        elif self.comm_measured:
            self.phases[COMM] -= sum(minima)
            self.phases[COMM_TRANSFER] += sum(minima)


_SUMS = ("step_s", "gap_s", *PHASES, "comm_exposed_s", "samples", "skipped")


def step_line(step: StepRecord, samples: int, *, split: bool) -> dict[str, Any]:
    """The line of one step of `samples` on this rank. `split`: whether the ranks compared it."""
    phases: list[float | None] = [seconds and round(seconds, DECIMALS) for seconds in step.phases]
    exposed_s = step.phases[COMM] + step.phases[COMM_TRANSFER]
    if not (split and step.comm_measured):
        phases[COMM] = phases[COMM_TRANSFER] = None
    values = step.values
    line = {
        "schema_version": SCHEMA_VERSION,
        "step": step.step,
        "start_s": round(step.start_s, DECIMALS),
        "step_s": round(step.step_s, DECIMALS),
        "gap_s": round(step.gap_s, DECIMALS),
        **dict(zip(PHASES, phases, strict=True)),
        "comm_exposed_s": round(exposed_s, DECIMALS) if step.comm_measured else None,
        "samples": samples,
        "loss": values["loss"],
        "lr": step.lr,
        "grad_norm": values.get("grad_norm"),
        "skipped": bool(values.get("skipped")),
    }
    if extra := {name: value for name, value in values.items() if name not in line}:
        line["extra"] = extra
    return line


def aggregate_line(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `StepAggregate` of consecutive lines; the communication of all is measured, or of none."""
    last = lines[-1]
    shortest, longest = (choose(lines, key=lambda line: line["step_s"]) for choose in (min, max))
    sums = {name: None if last[name] is None else sum(line[name] for line in lines) for name in _SUMS}
    extra = {name: _mean(line.get("extra", {}).get(name) for line in lines) for name in last.get("extra", ())}
    return {
        "schema_version": SCHEMA_VERSION,
        "first": lines[0]["step"],
        "last": last["step"],
        "steps": len(lines),
        "start_s": lines[0]["start_s"],
        **{name: value and round(value, DECIMALS) for name, value in sums.items()},
        "loss": _mean(line["loss"] for line in lines),
        "lr": last["lr"],
        "grad_norm": _mean(line["grad_norm"] for line in lines),
        **({"extra": extra} if extra else {}),
        "shortest_s": shortest["step_s"],
        "shortest_step": shortest["step"],
        "longest_s": longest["step_s"],
        "longest_step": longest["step"],
        "bins": sorted(Counter(bin_of(line["step_s"]) for line in lines).items()),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the finite values; None without any."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


class StepSeries:
    """A series of one number per step, in 16 bytes per step."""

    def __init__(self) -> None:
        self._points = array("d")  # step, value, step, value, ...

    def __len__(self) -> int:
        return len(self._points) // 2

    def add(self, step: int, value: float) -> None:
        self._points.extend((step, value))

    @property
    def newest(self) -> tuple[int, float] | None:
        """The last step and its value."""
        return (int(self._points[-2]), self._points[-1]) if self._points else None

    @property
    def values(self) -> Sequence[float]:
        """The values, in order."""
        return self._points[1::2]

    def points(self, make: Callable[..., P], value: str, limit: int = 1000) -> list[P]:
        """At most `limit` evenly spaced records with the fields `step` and `value`, the first and the last
        one included. A value that is not finite is None."""
        count, points = len(self), self._points
        chosen = [i * (count - 1) // (limit - 1) for i in range(limit)] if count > limit else range(count)
        pairs = [(int(points[2 * i]), points[2 * i + 1]) for i in chosen]
        return [make(**{"step": at, value: each if math.isfinite(each) else None}) for at, each in pairs]

    def tensor(self) -> Tensor:
        """A copy, for a checkpoint."""
        return torch.from_numpy(np.array(self._points))

    def extend(self, points: Tensor) -> None:
        """Append the result of `tensor`."""
        self._points.frombytes(points.numpy().tobytes())
