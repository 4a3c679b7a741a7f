"""The steps of one rank: joined with the clock, compared over ranks, summed, and written in batches.

The comparison splits exposed communication into waiting and transfer, without comparing clocks of different
ranks. All ranks leave a blocking collective together. The rank that arrives last waits for nobody, so its
time in the collective is transfer, and the additional time of any other rank is waiting:

    transfer = minimum over ranks of the time in the collective
    wait = own time - transfer

Durations are compared, never times of day. DDP's backward pass and each control synchronisation are compared
separately. A collective within a group of ranks, as under hybrid sharding, is compared within that group.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from disttrain.records.steps import PHASES
from disttrain.runtime import log
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.telemetry.facts import Communication
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import (
    COMM,
    COMM_TRANSFER,
    COMPUTE,
    PHASE_OF_DIMENSION,
    PhaseSeconds,
    StepClock,
)
from disttrain.telemetry.steps import StepRecord, StepResult, StepSeries, aggregate_line, step_line

COMM_SPLIT = "min_over_ranks"
"""Method that divides exposed communication, as named in `Metrics`."""
OF_SPEED = ("step_s", "ratio")
"""Series of the measured steps."""
AGGREGATE_STEPS = 100
"""Steps per record after the first `full_records` steps."""


@dataclass
class StepLog:
    """Joins each closed step of the clock with its `StepResult`, sums and writes it.

    With `communication`, the ranks compare theirs, and a step is written once the comparison has arrived
    (`reduce`).
    """

    lines: JsonLinesWriter
    clock: StepClock
    reductions: Reductions
    communication: Communication | None
    """None where none is measured."""
    samples_per_step: int
    """Of this rank."""
    warmup_steps: int
    """First steps of an attempt, which are not measured; nor are those `profiled`."""
    profiled: Collection[int] = ()
    full_records: int = 100_000
    start_step: int = 0
    """Steps before this attempt."""
    step: int = 0
    """The newest step."""
    lr: float = 0.0
    """Its learning rate."""
    closed: tuple[int, float] = (0, 0.0)
    """The newest step read from the clock, and the seconds of all steps of the attempt up to it."""
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
    skipped_total: int = 0
    """Steps whose update was skipped because the gradient norm was not finite: of the run on rank 0, of this
    attempt on the others."""
    skipped_in_a_row: int = 0
    """Up to the newest step; the same on all ranks."""
    last_skipped: int = 0
    """The newest skipped step of this attempt; 0: none."""
    _losses: list[tuple[int | None, Tensor]] = field(default_factory=list)
    """Losses of this rank that are not yet reduced; None: the step recorded none."""
    _recorded: deque[StepRecord] = field(default_factory=deque)
    _uncompared: deque[StepRecord] = field(default_factory=deque)
    """Closed steps without the result of their comparison, which is under way for the first ones."""
    _under_way: int = 0
    _held_back: int = 0
    _shared: list[dict[str, Any]] = field(default_factory=list)
    """Lines of the steps of the aggregate that is not complete."""

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
        self.step, self.lr = result.step, result.lr
        self._losses.append((result.step if loss_recorded else None, result.loss))
        self._recorded.append(StepRecord.of(result))

    def collect(self, await_steps: int = 0) -> None:
        """Read the steps that the device has finished from the clock; wait for the first `await_steps`."""
        compares = self.communication is not None and self.communication.compares_passes
        for clocked in self.clock.finished(await_steps):
            step = self._recorded.popleft()
            step.close(clocked, compares_passes=compares)
            self.closed = (step.step, self.closed[1] + step.step_s)
            for name, value in step.values.items():
                if name not in ("loss", "skipped"):
                    self.series[name].add(step.step, value)
            self._count_skipped(step)
            if self.communication is None:
                step.discard_comm()
                self._account(step)
            else:
                self._uncompared.append(step)

    def _count_skipped(self, step: StepRecord) -> None:
        if not step.values.get("skipped"):
            self.skipped_in_a_row = 0
            return
        self.skipped_total += 1
        self.skipped_in_a_row += 1
        self.last_skipped = step.step
        norm = step.values.get("grad_norm")
        log.info("update skipped", step=step.step, grad_norm=norm, in_a_row=self.skipped_in_a_row)

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
        if self.communication is not None:
            self._compare(self.communication, wait)
        else:
            self.collect(self.unread if wait else 0)
        self.reductions.collect(wait)

    def _take_losses(self, steps: list[int | None], sums: Tensor) -> None:
        world = self.reductions.world
        if world.rank == 0:
            for step, loss in zip(steps, (sums / world.size).float().tolist(), strict=True):
                if step is not None:
                    self.series["loss"].add(step, loss)

    def _compare(self, communication: Communication, wait: bool) -> None:
        """Compare the steps. On a GPU the newest ones wait for the next call, when the clock can be read
        without waiting for queued work. Every rank has the same number of calls in a step."""
        on_gpu = self.reductions.world.device.type == "cuda"
        pending = self.unread + len(self._uncompared) - self._under_way
        due = self._held_back if on_gpu and not wait else pending
        self._held_back = pending - due
        if not due:
            return
        self.collect(max(0, due + self._under_way - len(self._uncompared)))
        steps = list(itertools.islice(self._uncompared, self._under_way, self._under_way + due))
        self._under_way += due
        groups: list[tuple[Dimension | None, dist.ProcessGroup | None]]
        groups = [(None, None), *communication.groups.items()]
        for dimension, group in groups:
            seconds = [step.calls.get(PHASE_OF_DIMENSION[dimension], []) for step in steps]
            # from pinned memory: a copy from pageable memory would wait for all queued work
            own = torch.tensor([*itertools.chain(*seconds)], dtype=torch.float64, pin_memory=on_gpu)
            values = own.to(self.reductions.world.device, non_blocking=True)
            take = partial(_take_minima, steps, list(map(len, seconds)))
            self.reductions.submit(values, dist.ReduceOp.MIN, take, group, wait=wait)
        self.reductions.then(partial(self._take_compared, due))

    def _take_compared(self, count: int) -> None:
        self._under_way -= count
        for _ in range(count):
            self._account(self._uncompared.popleft())

    def abandon(self) -> None:
        """Write the steps that the ranks will not compare any more, with null wait and transfer."""
        self.collect()
        self.reductions.collect()
        while self._uncompared:
            self._write(self._uncompared.popleft(), split=False)

    def close(self) -> None:
        self._end_aggregate()
        self.lines.close()

    def _account(self, step: StepRecord) -> None:
        phases = step.phases
        if step.step > self.warm_step and step.step not in self.profiled:
            self.series["step_s"].add(step.step, step.step_s)
            self.comm_unmeasured |= not step.comm_measured
            if step.comm_measured and phases[COMPUTE] > 0:
                self.series["ratio"].add(step.step, (phases[COMM] + phases[COMM_TRANSFER]) / phases[COMPUTE])
            self.measured = [*map(add, self.measured, phases)]
        self._write(step)

    def _write(self, step: StepRecord, *, split: bool = True) -> None:
        self.gap_s += step.gap_s
        number, profiled, is_warm = step.step, step.step in self.profiled, step.step > self.warm_step
        if profiled or not is_warm:
            self.profiled_after_warmup += is_warm
            follows = bool(self.left_out) and self.left_out[-1][1] == number - 1
            self.left_out.append((self.left_out.pop()[0] if follows else number, number))
        alone = number <= self.full_records or profiled or not split
        line = step_line(step, self.samples_per_step, split=split)
        if self._shared:  # lines are in the order of the steps; those of one are all measured, or none
            last = self._shared[-1]
            differs = (last["comm_exposed_s"] is None) == step.comm_measured
            differs |= last["step"] <= self.warm_step < number
            if alone or differs or len(self._shared) == AGGREGATE_STEPS:
                self._end_aggregate()
        if alone:
            self.lines.add(line)
        else:
            self._shared.append(line)

    def _end_aggregate(self) -> None:
        if (line := self.open_aggregate()) is not None:
            self.lines.add(line)
            self._shared = []

    # Checkpoints

    def open_aggregate(self) -> dict[str, Any] | None:
        """The record of the steps that are in no line yet, for a checkpoint. Ending the aggregate at each
        checkpoint instead would give as many short lines as there are checkpoints."""
        return aggregate_line(self._shared) if self._shared else None

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What resumes beside the `series`, by attribute: of the run, from rank 0, and of this rank."""
        speed = {name: getattr(self, name) for name in ("measured", "left_out", "profiled_after_warmup")}
        run = {"gap_s": self.gap_s, "skipped_total": self.skipped_total}
        return run, speed | {"aggregate": self.open_aggregate()}

    def resume(
        self,
        step: int,
        run: Mapping[str, Any] = {},
        own: Mapping[str, Any] = {},
        series: Mapping[str, Tensor] = {},
        *,
        same_run: bool = True,
    ) -> None:
        """Continue after `step` from a `state` and the series, of this run or of another one.

        Without `own`, another number of ranks measured the steps before: figures of speed then cover the
        steps from here on."""
        self.start_step = self.step = step
        self.left_out, self.closed = [(1, step)], (step, 0.0)
        speed = dict(own)
        if (line := speed.pop("aggregate", None)) and same_run:
            self.lines.add(line | {"start_s": None})  # that clock is gone
        vars(self).update(run, **speed)
        for name, points in series.items():
            if own or name not in OF_SPEED:
                self.series[name].extend(points)


def _take_minima(steps: Sequence[StepRecord], counts: Sequence[int], minima: Tensor) -> None:
    values = iter(minima.tolist())
    for step, count in zip(steps, counts, strict=True):
        step.take_transfer(list(itertools.islice(values, count)))
