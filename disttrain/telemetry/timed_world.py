"""What ranks do together between passes counts as communication, wherever in a step it happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import CONTROL_SYNC, StepClock


@dataclass(frozen=True)
class TimedWorld(World):
    """The same world, in which whoever waits for a peer does so in class CONTROL_SYNC of the clock.

    Else a rank that is late to such a meeting would show in whatever class its peers happen to be in.
    """

    clock: StepClock

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        with self._meeting():
            return super().all_reduce(tensor, op)

    def all_gather_object(self, value: Any) -> list[Any]:
        with self._meeting():
            return super().all_gather_object(value)

    def all_reduce_max(self, values: Any) -> list[float]:
        with self._meeting():
            return super().all_reduce_max(values)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        before = self.clock.phase
        self.clock.switch(CONTROL_SYNC)
        try:
            yield
        finally:
            self.clock.switch(before)
