"""All-reduces that run beside the steps: each calls a function with its result once it has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat

_Queued = tuple[torch.Tensor, torch.cuda.Event | dist.Work | None, Callable[[torch.Tensor], None]]


class Reductions:
    """A queue of reductions over the ranks of `world`. On a GPU they are queued behind its work, on a CPU the
    threads of gloo carry them out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._queued: deque[_Queued] = deque()

    def submit(
        self,
        values: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        then: Callable[[torch.Tensor], None],
        group: dist.ProcessGroup | None = None,
        *,
        wait: bool = False,
    ) -> None:
        """Collective: reduce `values`, a tensor on the world's device, over all ranks or those of `group`.
        `collect` calls `then` with the result on the host. With `wait`, a CPU rank waits for the result, so
        that the world can time the call."""
        arrival: torch.cuda.Event | dist.Work | None = None
        if values.is_cuda:
            values = self.world.all_reduce(values, op, group).to("cpu", non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
        elif wait:
            self.world.all_reduce(values, op, group)
        else:
            arrival = self.world.start_all_reduce(values, op, group)
        self._queued.append((values, arrival, then))

    def then(self, act: Callable[[], None]) -> None:
        """Have `collect` call `act` after the reductions submitted so far."""
        self._queued.append((torch.empty(0), None, lambda _: act()))

    def collect(self, wait: bool = False) -> None:
        """Call `then` of each reduction that has arrived, oldest first; with `wait`, of all. One that failed
        never arrives: with `wait` it raises `RuntimeError`."""
        while self._queued:
            values, arrival, then = self._queued[0]
            if arrival is not None:
                done = arrival.is_completed if isinstance(arrival, dist.Work) else arrival.query
                if not wait and not done():
                    return
                try:
                    with heartbeat.collective():
                        arrival.wait() if isinstance(arrival, dist.Work) else arrival.synchronize()
                except RuntimeError:
                    if wait:
                        raise
                    return
            self._queued.popleft()
            then(values)
