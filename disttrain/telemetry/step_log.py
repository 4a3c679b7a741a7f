"""The steps of one rank: joined with the clock, compared over ranks, summed, and written in batches."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from disttrain.records.steps import PHASES
from disttrain.runtime import log
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.background_writer import BackgroundJsonLines
from disttrain.telemetry.comm_split import CommSplit
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, PhaseSeconds, StepClock
from disttrain.telemetry.step_records import StepRecord, aggregate_line, step_line
from disttrain.telemetry.step_result import StepResult
from disttrain.telemetry.step_series import StepSeries

OF_SPEED = ("step_s", "ratio")
"""Series of the measured steps."""
AGGREGATE_STEPS = 100
"""Steps per record after the first `full_records` steps."""
RECORDS_AT_ONCE = 256
"""Steps read from the clock at once. A larger batch costs less per step, and stalls one step longer."""


@dataclass
class SkippedSteps:
    """Steps whose update was skipped because the gradient norm was not finite; the same on all ranks."""

    total: int = 0
    """Over the whole run, earlier attempts included."""
    of_attempt: int = 0
    """In this attempt."""
    in_a_row: int = 0
    """Up to the newest step."""
    last: int = 0
    """The newest skipped step; 0: none."""

    def add(self, step: StepRecord) -> None:
        if not step.skipped:
            self.in_a_row = 0
            return
        self.total += 1
        self.of_attempt += 1
        self.in_a_row += 1
        self.last = step.step
        log.info("update skipped", step=step.step, grad_norm=step.grad_norm, in_a_row=self.in_a_row)


@dataclass
class StepLog:
    """Joins each closed step of the clock with its `StepResult`, sums and writes it.

    With `split`, the ranks compare their communication, and a step is written once the comparison has
    arrived (`reduce`).
    """

    lines: JsonLinesWriter | BackgroundJsonLines
    clock: StepClock
    world: World
    """Its collectives are timed."""
    reductions: Reductions
    split: CommSplit | None
    samples_per_step: int
    """Of this rank."""
    warmup_steps: int
    """First steps of an attempt, which are not measured; nor are those `profiled`."""
    profiled: Collection[int] = ()
    full_records: int = 100_000
    start_step: int = 0
    """Steps before this attempt."""
    comm_unmeasured: bool = False
    """Whether some rank's communication is unknown in a measured step."""
    measured: PhaseSeconds = field(default_factory=lambda: [0.0] * len(PHASES))
    """Sums over the measured steps."""
    series: defaultdict[str, StepSeries] = field(default_factory=lambda: defaultdict(StepSeries))
    """`loss` (global, on rank 0), `grad_norm` and each `extra`; of the measured steps `step_s`, and `ratio`:
    exposed communication / compute."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """First and last step of each range of written steps that are not measured."""
    profiled_after_warmup: int = 0
    """Profiled steps among them, but those of a warm-up."""
    gap_s: float = 0.0
    """Wall time between all steps that are written, outside of every step."""
    skipped: SkippedSteps = field(default_factory=SkippedSteps)
    _losses: list[tuple[int | None, Tensor]] = field(default_factory=list)
    """Losses of this rank that are not yet reduced; None: the step recorded none."""
    _recorded: deque[StepResult] = field(default_factory=deque)
    _uncompared: deque[StepRecord] = field(default_factory=deque)
    _under_way: deque[StepRecord] = field(default_factory=deque)
    """Steps whose comparison is under way."""
    _held_back: int = 0
    _shared: list[StepRecord] = field(default_factory=list)
    """Steps of the line that is not complete."""

    @property
    def warm_step(self) -> int:
        """Last step of the warm-up."""
        return self.start_step + self.warmup_steps

    @property
    def unread(self) -> int:
        """Number of recorded steps not yet read from the clock."""
        return len(self._recorded)

    def record(self, result: StepResult, *, loss_recorded: bool = True) -> None:
        """Call directly before the clock's `end_step`: the copies to the host then end with the step."""
        self._losses.append((result.step if loss_recorded else None, result.loss))
        extra = {name: _on_host(value) for name, value in result.extra.items()} if result.extra else {}
        loss, norm, skipped = map(_on_host, (result.loss, result.grad_norm, result.skipped))
        self._recorded.append(
            StepResult(result.step, loss, result.lr, norm, skipped, result.comm_reason, extra)
        )

    def collect(self, await_steps: int = 0) -> None:
        """Read the steps that the device has finished from the clock; wait for the first `await_steps`."""
        for clocked in self.clock.finished(await_steps):
            step = StepRecord.of(self._recorded.popleft(), clocked)
            self.skipped.add(step)
            if step.grad_norm is not None:
                self.series["grad_norm"].add(step.step, step.grad_norm)
            for name, value in step.extra.items():
                self.series[name].add(step.step, value)
            if self.split is None:
                self._account(step)
            else:
                self._uncompared.append(step)

    def reduce(self, wait: bool = False) -> None:
        """Collective: reduce the losses and compare the communication of the ranks, without waiting for the
        device. With `wait`, every recorded step is written."""
        if self._losses:
            steps = [step for step, _ in self._losses]
            # Sums of single-precision losses are exact in double precision: the curve depends neither on the
            # order of summation nor on the grouping of steps, and a resumed run repeats it bit by bit.
            losses = torch.stack([loss for _, loss in self._losses]).double()
            self._losses = []
            self.reductions.submit(losses, dist.ReduceOp.SUM, partial(self._take_losses, steps), wait=wait)
        if self.split is not None:
            self._compare(self.split, wait)
        elif wait or self.unread >= RECORDS_AT_ONCE:
            self.collect(self.unread if wait else 0)
        self.reductions.collect(wait)

    def _take_losses(self, steps: list[int | None], sums: Tensor) -> None:
        if self.world.rank == 0:
            for step, loss in zip(steps, (sums / self.world.size).float().tolist(), strict=True):
                if step is not None:
                    self.series["loss"].add(step, loss)

    def _compare(self, split: CommSplit, wait: bool) -> None:
        """Compare the steps. On a GPU the newest ones wait for the next call, when the clock can be read
        without waiting for queued work."""
        pending = self.unread + len(self._uncompared)
        due = self._held_back if self.world.device.type == "cuda" and not wait else pending
        self._held_back = pending - due
        if due:
            self.collect(max(0, due - len(self._uncompared)))
            steps = [self._uncompared.popleft() for _ in range(due)]
            self._under_way.extend(steps)
            split.submit(steps, partial(self._take_compared, due), wait=wait)

    def _take_compared(self, count: int) -> None:
        for _ in range(count):
            self._account(self._under_way.popleft())

    def abandon(self) -> None:
        """Write the steps that the ranks will not compare any more, with null wait and transfer."""
        self.collect()
        self.reductions.collect()
        for step in (*self._under_way, *self._uncompared):
            self._write(step, split=False)
        self._under_way.clear()
        self._uncompared.clear()

    def flush(self) -> None:
        """Write the waiting lines to the file, or have its thread write them."""
        self.lines.flush()

    def open_aggregate(self) -> dict[str, Any] | None:
        """The record of the steps that are in no line yet, for a checkpoint. Ending the aggregate at each
        checkpoint instead would give as many short lines as there are checkpoints."""
        return self._aggregate() if self._shared else None

    def close(self) -> None:
        self._end_aggregate()
        self.lines.close()

    def _account(self, step: StepRecord) -> None:
        phases = step.phases
        if step.step > self.warm_step and step.step not in self.profiled:
            self.series["step_s"].add(step.step, step.step_s)
            self.comm_unmeasured |= not step.comm_measured
            if self.split is not None and step.comm_measured and phases[COMPUTE] > 0:
                self.series["ratio"].add(step.step, (phases[COMM] + phases[COMM_TRANSFER]) / phases[COMPUTE])
            for index, seconds in enumerate(phases):
                self.measured[index] += seconds
        self._write(step)

    def _write(self, step: StepRecord, *, split: bool = True) -> None:
        self.gap_s += step.gap_s
        number, profiled = step.step, step.step in self.profiled
        if profiled or number <= self.warm_step:
            self.profiled_after_warmup += number > self.warm_step
            before = self.left_out[-1] if self.left_out else (0, 0)
            follows = before[1] == number - 1 and before[0]
            self.left_out[len(self.left_out) - bool(follows) :] = [(before[0] if follows else number, number)]
        if number <= self.full_records or profiled or (self._measured(step) and not split):
            self._end_aggregate()  # lines are in the order of the steps
            self.lines.add(step_line(step, self.samples_per_step, comm=self._measured(step), split=split))
            return
        if self._shared:  # the steps of one aggregate are all measured, or none
            last = self._shared[-1]
            if self._measured(last) != self._measured(step) or last.step <= self.warm_step < number:
                self._end_aggregate()
        self._shared.append(step)
        if len(self._shared) == AGGREGATE_STEPS:
            self._end_aggregate()

    def _end_aggregate(self) -> None:
        if self._shared:
            self.lines.add(self._aggregate())
            self._shared = []

    def _aggregate(self) -> dict[str, Any]:
        return aggregate_line(self._shared, self.samples_per_step, comm=self._measured(self._shared[-1]))

    def _measured(self, step: StepRecord) -> bool:
        """Whether the communication of the step is known."""
        return self.split is not None and step.comm_measured

    # Checkpoints

    def own_state(self) -> dict[str, Any]:
        """What this rank needs to resume, as plain data."""
        return {"measured": self.measured, "aggregate": self.open_aggregate()}

    def run_state(self) -> dict[str, Any]:
        """What rank 0 needs beside the `series`, as plain data."""
        profiled, skipped = self.profiled_after_warmup, self.skipped.total
        return {"left_out": self.left_out, "profiled": profiled, "gap_s": self.gap_s, "skipped": skipped}

    def resume(self, step: int, own: dict[str, Any] | None, *, same_run: bool) -> None:
        """Continue after `step` from an `own_state`, of this run or of another one.

        Without, another number of ranks measured the steps before: figures of speed then cover the steps from
        here on."""
        self.start_step, self.left_out = step, [(1, step)]
        if own is not None:
            self.measured = own["measured"]
            if same_run and own["aggregate"]:
                self.lines.add(own["aggregate"] | {"start_s": None})  # that clock is gone

    def resume_run(self, run: dict[str, Any], series: Mapping[str, Tensor], *, with_speed: bool) -> None:
        """Continue from a `run_state` and the series. Without speed, leave out what was measured."""
        self.gap_s, self.skipped.total = run["gap_s"], run["skipped"]
        if with_speed:
            self.left_out = [(first, last) for first, last in run["left_out"]]
            self.profiled_after_warmup = run["profiled"]
        for name, points in series.items():
            if with_speed or name not in OF_SPEED:
                self.series[name].extend(points)


def _on_host(value: Any) -> Any:
    return value.to("cpu", non_blocking=True) if isinstance(value, Tensor) else value
