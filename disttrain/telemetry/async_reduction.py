"""All-reduces that run beside the steps and are read once their results have arrived."""

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
    """A queue of reductions over ranks, each with a label of type `L`. On a GPU they are queued behind its
    work, on a CPU the threads of gloo carry them out."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queued: deque[tuple[L, torch.Tensor, torch.cuda.Event | dist.Work | None]] = deque()

    def submit(
        self,
        label: L,
        values: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        group: dist.ProcessGroup | None = None,
        *,
        wait: bool = False,
    ) -> None:
        """Reduce `values`, a tensor on the world's device, over all ranks or those of `group`. All ranks call
        this together. With `wait`, a CPU rank waits for the result, so that the world can time the call."""
        arrival: torch.cuda.Event | dist.Work | None = None
        if values.is_cuda:
            values = self._world.all_reduce(values, op, group).to("cpu", non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
        elif wait:
            values = self._world.all_reduce(values, op, group)
        else:
            arrival = self._world.start_all_reduce(values, op, group)
        self._queued.append((label, values, arrival))

    def ready(self, wait: bool = False) -> Iterator[tuple[L, torch.Tensor]]:
        """Remove and yield label and result (on the CPU) of each reduction that has arrived, oldest first;
        with `wait`, of all. One that failed never arrives: with `wait` it raises `RuntimeError`."""
        while self._queued:
            label, reduced, arrival = self._queued[0]
            if isinstance(arrival, dist.Work):
                if not wait and not arrival.is_completed():
                    return
                try:
                    with heartbeat.collective():
                        arrival.wait()
                except RuntimeError:
                    if wait:
                        raise
                    return
            elif arrival is not None:
                if wait:
                    with heartbeat.collective():
                        arrival.synchronize()
                if not arrival.query():
                    return
            self._queued.popleft()
            yield label, reduced
