"""Steps as the clock closed them, and their lines in `steps-RRRRR.jsonl`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.steps import PHASES, bin_of
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, OTHER, ClockedStep, PhaseSeconds
from disttrain.telemetry.step_result import StepResult

UNMEASURED = -1.0
"""In place of seconds: this rank could not measure its communication in the passes of the step."""
DECIMALS = 7
"""Of seconds in step records: 0.1 us, the resolution of the host's clock."""


@dataclass(slots=True)
class StepRecord:
    """A closed step of this rank, with its values on the host."""

    step: int
    lr: float
    loss: float
    grad_norm: float | None
    skipped: bool
    extra: dict[str, float]
    start_s: float
    gap_s: float
    phases: PhaseSeconds
    """COMM has all exposed communication, until the ranks compare it."""
    passes_s: float
    """Exposed communication in the passes, or UNMEASURED."""
    control: list[float]
    within: dict[int, list[float]]

    @classmethod
    def of(cls, result: StepResult, clocked: ClockedStep) -> StepRecord:
        """The record of a step whose `result` is on the host. `clocked` is not used any more."""
        passes_s, phases = clocked.phases[COMM], clocked.phases
        phases[COMM] = clocked.exposed_s
        record = cls(
            result.step, result.lr, float(result.loss),
            None if result.grad_norm is None else float(result.grad_norm),
            result.skipped is not None and bool(result.skipped),
            {name: float(value) for name, value in result.extra.items()} if result.extra else {},
            clocked.start_s, clocked.gap_s, phases, passes_s, clocked.control, clocked.within,
        )  # fmt: skip
        if result.comm_reason is not None:
            record.discard_comm()
        return record

    @property
    def comm_measured(self) -> bool:
        return self.passes_s != UNMEASURED

    @property
    def step_s(self) -> float:
        return sum(self.phases)

    def discard_comm(self) -> None:
        """Communication was only partly measured; move it to `other`."""
        self.passes_s = UNMEASURED
        self.phases[OTHER] += self.phases[COMM]
        self.phases[COMM] = 0.0

    def take_transfer(self, minima: Sequence[float]) -> None:
        """Take the minimum over ranks of each call, which is transfer. UNMEASURED: one rank measured none."""
        if min(minima, default=0.0) < 0:
            self.discard_comm()
        elif self.comm_measured:
            self.phases[COMM] -= sum(minima)
            self.phases[COMM_TRANSFER] += sum(minima)


def step_line(step: StepRecord, samples: int, *, comm: bool, split: bool) -> dict[str, Any]:
    """The line of one step.

    `samples`: of a step on this rank. `comm`: whether exposed communication was measured. `split`: whether
    the ranks compared it.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step.step,
        **_seconds(step.start_s, step.gap_s, step.phases, comm=comm, split=split),
        "samples": samples,
        "loss": step.loss,
        "lr": step.lr,
        "grad_norm": step.grad_norm,
        "skipped": step.skipped,
        **({"extra": step.extra} if step.extra else {}),
    }


def aggregate_line(steps: Sequence[StepRecord], samples: int, *, comm: bool) -> dict[str, Any]:
    """The line of consecutive steps, a `StepAggregate`; arguments as for `step_line`."""
    first, last = steps[0], steps[-1]
    sums = [sum(seconds) for seconds in zip(*(step.phases for step in steps), strict=True)]
    gap_s = sum(step.gap_s for step in steps)
    shortest, longest = (choose(steps, key=lambda step: step.step_s) for choose in (min, max))
    bins = Counter(bin_of(step.step_s) for step in steps)
    extra = {name: _mean(step.extra.get(name) for step in steps) for name in last.extra}
    return {
        "schema_version": SCHEMA_VERSION,
        "first": first.step,
        "last": last.step,
        "steps": len(steps),
        **_seconds(first.start_s, gap_s, sums, comm=comm, split=True),
        "shortest_s": round(shortest.step_s, DECIMALS),
        "shortest_step": shortest.step,
        "longest_s": round(longest.step_s, DECIMALS),
        "longest_step": longest.step,
        "bins": sorted(bins.items()),
        "samples": samples * len(steps),
        "loss": _mean(step.loss for step in steps),
        "lr": last.lr,
        "grad_norm": _mean(step.grad_norm for step in steps),
        "skipped": sum(step.skipped for step in steps),
        **({"extra": extra} if extra else {}),
    }


def _seconds(
    start_s: float, gap_s: float, phases: PhaseSeconds, *, comm: bool, split: bool
) -> dict[str, float | None]:
    named: dict[str, float | None] = {
        "start_s": round(start_s, DECIMALS),
        "step_s": round(sum(phases), DECIMALS),
        "gap_s": round(gap_s, DECIMALS),
        **dict(zip(PHASES, [round(seconds, DECIMALS) for seconds in phases], strict=True)),
        "comm_exposed_s": round(phases[COMM] + phases[COMM_TRANSFER], DECIMALS) if comm else None,
    }
    if not (comm and split):
        named[PHASES[COMM]] = named[PHASES[COMM_TRANSFER]] = None
    return named


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the finite values; None without any."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
