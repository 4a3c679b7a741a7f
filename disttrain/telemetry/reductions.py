"""All-reduces that run beside the steps: each calls a function with its result once it has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat

_Queued = tuple[torch.Tensor, Callable[[], bool], Callable[[], object], Callable[[torch.Tensor], None]]
"""Values, whether they have arrived, a function that waits for them, and one that takes them."""

_at_once: tuple[Callable[[], bool], Callable[[], object]] = (lambda: True, lambda: None)


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
        has_arrived, arrive = _at_once
        if values.is_cuda:
            values = self.world.all_reduce(values, op, group).to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            has_arrived, arrive = event.query, event.synchronize
        elif wait:
            self.world.all_reduce(values, op, group)
        elif work := self.world.start_all_reduce(values, op, group):
            has_arrived, arrive = work.is_completed, work.wait
        self._queued.append((values, has_arrived, arrive, then))

    def then(self, act: Callable[[], None]) -> None:
        """Have `collect` call `act` after the reductions submitted so far."""
        self._queued.append((torch.empty(0), *_at_once, lambda _: act()))

    def collect(self, wait: bool = False) -> None:
        """Call `then` of each reduction that has arrived, oldest first; with `wait`, of all. One that failed
        never arrives: with `wait` it raises `RuntimeError`."""
        while self._queued:
            values, has_arrived, arrive, then = self._queued[0]
            if not (wait or has_arrived()):
                return
            try:
                with heartbeat.collective():
                    arrive()
            except RuntimeError:
                if wait:
                    raise
                return
            self._queued.popleft()
            then(values)
