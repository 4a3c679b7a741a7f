"""Exposed communication split into waiting and transfer, without comparing clocks of different ranks.

All ranks leave a blocking collective together. The rank that arrives last waits for nobody, so its time in
the collective is transfer, and the additional time of any other rank is waiting:

    transfer = minimum over ranks of the time in the collective
    wait = own time - transfer

Durations are compared, never times of day. DDP's backward pass and each control synchronisation are compared
separately. A collective within a group of ranks, as under hybrid sharding, is compared within that group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import PHASE_OF_DIMENSION
from disttrain.telemetry.step_records import StepRecord

METHOD = "min_over_ranks"


@dataclass(frozen=True)
class CommSplit:
    """Finds the transfer seconds of steps."""

    world: World
    reductions: Reductions
    groups: Mapping[Dimension, dist.ProcessGroup] = field(default_factory=dict)
    """This rank's process group of each dimension of a mesh with two."""
    compares_passes: bool = True
    """Without, all exposed communication in the passes counts as waiting."""

    def submit(self, steps: Sequence[StepRecord], then: Callable[[], None], *, wait: bool = False) -> None:
        """Collective: compare the exposed communication of `steps`, which take the transfer; then call
        `then`. Every rank has the same number of control synchronisations in a step."""
        passes = [step.passes_s if self.compares_passes else min(step.passes_s, 0.0) for step in steps]
        self._submit(steps, [[s, *step.control] for s, step in zip(passes, steps, strict=True)], None, wait)
        for dimension, group in self.groups.items():
            phase = PHASE_OF_DIMENSION[dimension]
            self._submit(steps, [step.within.get(phase, []) for step in steps], group, wait)
        self.reductions.then(then)

    def _submit(
        self,
        steps: Sequence[StepRecord],
        seconds: list[list[float]],
        group: dist.ProcessGroup | None,
        wait: bool,
    ) -> None:
        flat = [each for of_step in seconds for each in of_step]
        # from pinned memory: a copy from pageable memory would wait for all queued work
        own = torch.tensor(flat, dtype=torch.float64, pin_memory=self.world.device.type == "cuda")
        values = own.to(self.world.device, non_blocking=True)
        take = partial(_take_minima, steps, [len(of_step) for of_step in seconds])
        self.reductions.submit(values, dist.ReduceOp.MIN, take, group, wait=wait)


def _take_minima(steps: Sequence[StepRecord], counts: Sequence[int], minima: torch.Tensor) -> None:
    values = iter(minima.tolist())
    for step, count in zip(steps, counts, strict=True):
        step.take_transfer(list(itertools.islice(values, count)))
