"""The step records of one rank: one JSON line per optimizer step, written in batches between steps."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.steps import PHASES
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.telemetry.background_writer import BackgroundJsonLines
from disttrain.telemetry.comm_split import UNMEASURED, CommSplit
from disttrain.telemetry.gradient_log import GradientLog
from disttrain.telemetry.step_aggregate import DECIMALS, StepAccumulator
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, OTHER, PhaseSeconds, StepClock
from disttrain.telemetry.step_result import StepResult
from disttrain.telemetry.step_series import StepSeries

AGGREGATE_STEPS = 100
"""Steps per record after the first `full_records` steps."""


@dataclass(frozen=True)
class _ClosedStep:
    """A step that the clock has closed, before the ranks compare it."""

    step: int
    start: float
    phases: PhaseSeconds
    exposed_s: list[float]
    """Exposed communication: in the backward pass (may be UNMEASURED), then in each control
    synchronisation."""
    within: dict[int, list[float]]
    """Exposed communication within groups of ranks (`ClockedStep.within`)."""
    loss: float
    lr: float
    grad_norm: float | None
    skipped: bool
    gap_s: float

    @property
    def comm_measured(self) -> bool:
        return self.exposed_s[0] != UNMEASURED

    def discard_comm(self) -> None:
        """Communication was only partly measured; move it to `other`."""
        self.exposed_s[0] = UNMEASURED
        self.phases[OTHER] += self.phases[COMM]
        self.phases[COMM] = 0.0


class _RecordedStep(NamedTuple):
    """A step as the loop records it. Its tensors are copies on the host, which end with the step."""

    step: int
    loss: torch.Tensor
    lr: float
    grad_norm: torch.Tensor | None
    skipped: torch.Tensor | None
    comm_measured: bool


class StepLog:
    """Joins each closed step of the clock with its loss and learning rate, accumulates and writes the steps.

    Steps up to `warm_step` and profiled steps are written, but not measured. A resumed run starts with the
    `measured` sums and `durations` of the steps before. With `split`, a step is written once the ranks have
    compared its communication (`split_comm`).
    """

    def __init__(
        self,
        lines: JsonLinesWriter | BackgroundJsonLines,
        clock: StepClock,
        *,
        samples_per_step: int,
        warmup_steps: int,
        split: CommSplit | None,
        full_records: int = 100_000,
        compares_passes: bool = True,
    ) -> None:
        self._file = lines
        self._clock = clock
        self._samples = samples_per_step
        self.warm_step = warmup_steps
        """Last step of the warm-up."""
        self.profiled: frozenset[int] = frozenset()
        self._split = split
        self._compares_passes = compares_passes
        self._recorded: deque[_RecordedStep] = deque()
        self.comm_unmeasured = False
        """Whether some rank's communication is unknown in a measured step."""
        self._full_records = full_records
        self._aggregate = StepAccumulator()
        self._aggregate_comm_measured = False
        self._unsplit: deque[_ClosedStep] = deque()
        self._submitted = 0  # leading steps of `_unsplit` whose comparison is under way
        self.durations = array("d")
        """Seconds of each measured step."""
        self.gradients = GradientLog()
        self.ratios = StepSeries()
        """Exposed communication / compute of each measured step."""
        self.measured: PhaseSeconds = [0.0] * len(PHASES)
        """Sums over the measured steps."""
        self.gap_s = 0.0
        """Wall time between all steps that are written, outside of every step."""

    @property
    def unread(self) -> int:
        """Number of recorded steps not yet read from the clock."""
        return len(self._recorded)

    def record(self, result: StepResult) -> None:
        """Call directly before the clock's `end_step`: the copies to the host then end with the step."""
        self._recorded.append(
            _RecordedStep(
                result.step,
                result.loss.to("cpu", non_blocking=True),
                result.lr,
                _on_host(result.grad_norm),
                _on_host(result.skipped),
                result.exposed_comm_reason is None,
            )
        )
        if self._split is not None:
            self._split.step_done()

    def collect(self, await_steps: int = 0) -> None:
        """Read the steps that the device has finished from the clock; wait for the first `await_steps`."""
        for start, phases, within, gap_s in self._clock.finished(await_steps):
            recorded = self._recorded.popleft()
            exposed_s = [phases[COMM], *phases[len(PHASES) :]]
            del phases[len(PHASES) :]
            phases[COMM] = sum(exposed_s) + sum(map(sum, within.values()))
            grad_norm = None if recorded.grad_norm is None else float(recorded.grad_norm)
            skipped = recorded.skipped is not None and bool(recorded.skipped)
            self.gradients.add(recorded.step, grad_norm, skipped)
            closed = _ClosedStep(
                recorded.step, start, phases, exposed_s, within, float(recorded.loss), recorded.lr, grad_norm,
                skipped, gap_s,
            )  # fmt: skip
            if not recorded.comm_measured:
                closed.discard_comm()
            if self._split is None:
                self._account(closed)
            else:
                self._unsplit.append(closed)

    def split_comm(self, *, everything: bool = False) -> None:
        """Compare the communication of the ranks and write the steps whose comparison has arrived. All ranks
        together. `everything` waits until every recorded step is written."""
        if self._split is None:
            self.collect(self.unread if everything else 0)
            return
        due = self._split.due(everything=everything)
        self.collect(max(0, due - (len(self._unsplit) - self._submitted)))
        if due:
            steps = list(islice(self._unsplit, self._submitted, self._submitted + due))
            compared, within = [self._compared_s(each) for each in steps], [each.within for each in steps]
            self._split.submit(compared, within, wait=everything)
            self._submitted += due
        self._take_compared(wait=everything)

    def _take_compared(self, wait: bool = False) -> None:
        """Write the steps whose comparison has arrived; with `wait`, of all that are under way."""
        for transfer_s in self._split.ready(wait) if self._split is not None else ():
            closed = self._unsplit.popleft()
            self._submitted -= 1
            if transfer_s is None:
                closed.discard_comm()
            else:
                closed.phases[COMM] -= transfer_s
                closed.phases[COMM_TRANSFER] = transfer_s
            self._account(closed)

    def _compared_s(self, closed: _ClosedStep) -> list[float]:
        """The times that the ranks compare. A zero for the passes finds no transfer time in them."""
        passes, *control = closed.exposed_s
        return closed.exposed_s if self._compares_passes else [min(passes, 0.0), *control]

    def abandon(self) -> None:
        """Write the steps that the ranks will not compare any more, with null wait and transfer."""
        self.collect()
        self._take_compared()
        for closed in self._unsplit:
            self._write(closed, split=False)
        self._unsplit.clear()
        self._submitted = 0

    def flush(self) -> None:
        """Write the waiting lines to the file, or have its thread write them."""
        self._file.flush()

    def open_aggregate(self) -> dict[str, Any] | None:
        """The record of the aggregated steps that are in no line yet, for a checkpoint. Ending the
        aggregate at each checkpoint instead would give as many short lines as there are checkpoints."""
        return self._aggregate_record() if self._aggregate.steps else None

    def resume(self, aggregate: dict[str, Any]) -> None:
        """Write the `open_aggregate` of an earlier attempt. Its start is null: that clock is gone."""
        self._file.add(aggregate | {"start_s": None})

    def close(self) -> None:
        self._end_aggregate()
        self._file.close()

    def _account(self, closed: _ClosedStep) -> None:
        phases = closed.phases
        if closed.step > self.warm_step and closed.step not in self.profiled:
            self.durations.append(sum(phases))
            self.comm_unmeasured |= not closed.comm_measured
            if self._split is not None and closed.comm_measured and phases[COMPUTE] > 0:
                self.ratios.add(closed.step, (phases[COMM] + phases[COMM_TRANSFER]) / phases[COMPUTE])
            for index, seconds in enumerate(phases):
                self.measured[index] += seconds
        self._write(closed, split=True)

    def _write(self, closed: _ClosedStep, *, split: bool) -> None:
        self.gap_s += closed.gap_s
        comm_measured = self._split is not None and closed.comm_measured
        own_line = closed.step <= self._full_records or closed.step in self.profiled
        if not own_line and (split or not comm_measured):
            warmup_ends = self._aggregate.last <= self.warm_step < closed.step
            if comm_measured != self._aggregate_comm_measured or warmup_ends:
                self._end_aggregate()  # the steps of one aggregate are all measured, or none
            self._aggregate_comm_measured = comm_measured
            self._aggregate.add(
                closed.step, closed.start, closed.phases, closed.loss, closed.lr, closed.gap_s
            )
            self._aggregate.add_gradients(closed.grad_norm, closed.skipped)
            if self._aggregate.steps == AGGREGATE_STEPS:
                self._end_aggregate()
            return
        self._end_aggregate()  # lines are in the order of the steps
        self._file.add(
            {
                "schema_version": SCHEMA_VERSION,
                "step": closed.step,
                "start_s": round(closed.start, DECIMALS),
                "step_s": round(sum(closed.phases), DECIMALS),
                "gap_s": round(closed.gap_s, DECIMALS),
                **_by_name(closed.phases, comm_measured=comm_measured, split=split),
                "samples": self._samples,
                "loss": closed.loss,
                "lr": closed.lr,
                "grad_norm": closed.grad_norm,
                "skipped": closed.skipped,
            }
        )

    def _end_aggregate(self) -> None:
        if self._aggregate.steps:
            self._file.add(self._aggregate_record())
            self._aggregate = StepAccumulator()

    def _aggregate_record(self) -> dict[str, Any]:
        phases = _by_name(self._aggregate.sums, comm_measured=self._aggregate_comm_measured, split=True)
        return self._aggregate.as_record(phases, self._samples)


def _on_host(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.to("cpu", non_blocking=True)


def _by_name(phases: PhaseSeconds, *, comm_measured: bool, split: bool) -> dict[str, float | None]:
    """The phase fields of a record; communication that is not known is null."""
    named: dict[str, float | None] = dict(zip(PHASES, (round(p, DECIMALS) for p in phases), strict=True))
    if not (comm_measured and split):
        named[PHASES[COMM]] = named[PHASES[COMM_TRANSFER]] = None
    exposed_s = round(phases[COMM] + phases[COMM_TRANSFER], DECIMALS) if comm_measured else None
    return {**named, "comm_exposed_s": exposed_s}
