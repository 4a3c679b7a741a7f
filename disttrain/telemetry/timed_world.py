"""A `World` whose collectives are timed as control synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import StepClock, control_sync


@dataclass(frozen=True)
class TimedWorld(World):
    """Times collectives as CONTROL_SYNC, so that waiting for a late rank is not charged to the current
    phase."""

    clock: StepClock

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> torch.Tensor:
        with control_sync(self.clock):
            return super().all_reduce(tensor, op, group)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        with control_sync(self.clock):
            return super().broadcast(tensor)

    def all_gather_object(self, value: Any) -> list[Any]:
        with control_sync(self.clock):
            return super().all_gather_object(value)

    def gather_object(self, value: Any) -> list[Any] | None:
        with control_sync(self.clock):
            return super().gather_object(value)

    def start_all_reduce_max(self, values: Sequence[float]) -> Callable[[], list[float]]:
        wait = super().start_all_reduce_max(values)

        def timed() -> list[float]:
            with control_sync(self.clock):
                return wait()

        return timed
