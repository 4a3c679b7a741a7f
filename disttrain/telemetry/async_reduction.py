"""All-reduces that are queued behind the device's work and read once their results have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from disttrain.runtime import heartbeat
from disttrain.runtime.process_group import World

L = TypeVar("L")


class AsyncReductionQueue(Generic[L]):
    """A queue of reductions over ranks, each with a label of type `L`. The host never waits for the device
    unless `ready(wait=True)` is called."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queued: deque[tuple[L, torch.Tensor, torch.cuda.Event | None]] = deque()

    def submit(
        self,
        label: L,
        values: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Reduce `values`, a tensor on the world's device, over all ranks or those of `group`. All ranks call
        this together."""
        reduced = self._world.all_reduce(values, op, group)
        arrived = None
        if reduced.is_cuda:
            reduced = reduced.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._queued.append((label, reduced, arrived))

    def ready(self, wait: bool = False) -> Iterator[tuple[L, torch.Tensor]]:
        """Remove and yield label and result (on the CPU) of each reduction that has arrived, oldest first;
        with `wait`, of all."""
        while self._queued:
            label, reduced, arrived = self._queued[0]
            if arrived is not None and wait:
                with heartbeat.collective():
                    arrived.synchronize()
            if arrived is not None and not arrived.query():
                return
            self._queued.popleft()
            yield label, reduced
