"""The global loss curve: the mean over ranks of every step's loss, from one small all-reduce for many
steps."""

from __future__ import annotations

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.telemetry.async_reduction import AsyncReductionQueue
from disttrain.telemetry.step_series import StepSeries


class GlobalLoss:
    """Collects local losses and reduces those of several steps at once.

    A step's loss on one rank is a mean over equally many samples on every rank, so the mean over ranks is the
    loss of the global batch.
    """

    def __init__(self, world: World, curve: StepSeries) -> None:
        """`curve` receives the losses on rank 0."""
        self._world = world
        self._curve = curve
        self._local: list[tuple[int, torch.Tensor, bool]] = []
        self._reductions = AsyncReductionQueue[list[int | None]](world)

    def add(self, step: int, loss: torch.Tensor, recorded: bool = True) -> None:
        """Add the loss of a step. Without a `recorded` loss, `loss` is NaN and the curve leaves the step out:
        it is reduced nevertheless, since another rank may have recorded one."""
        self._local.append((step, loss, recorded))

    def reduce(self, wait: bool = False) -> None:
        """Reduce the losses added since the last call, without waiting for the device; on a CPU, wait for
        other ranks only with `wait`. All ranks together."""
        if self._local:
            steps = [step if recorded else None for step, _, recorded in self._local]
            # Sums of single-precision losses are exact in double precision: the curve depends neither on the
            # order of summation nor on the grouping of steps, and a resumed run repeats it bit by bit.
            losses = torch.stack([loss for _, loss, _ in self._local]).double()
            self._local = []
            self._reductions.submit(steps, losses, dist.ReduceOp.SUM, wait=wait)

    def collect(self, wait: bool = False) -> None:
        """Add the losses of the reductions that have arrived to the curve; with `wait`, of all."""
        for steps, sums in self._reductions.ready(wait):
            if self._world.rank == 0:
                for step, loss in zip(steps, (sums / self._world.size).float().tolist(), strict=True):
                    if step is not None:
                        self._curve.add(step, loss)
