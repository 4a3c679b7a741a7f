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
from collections import deque
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World
from disttrain.telemetry.async_reduction import AsyncReductionQueue
from disttrain.telemetry.step_clock import PHASE_OF_DIMENSION

METHOD = "min_over_ranks"
UNMEASURED = -1.0
"""In place of seconds: this rank could not measure its communication in the step."""


class CommSplit:
    """Finds the transfer time of each step. Steps are compared in windows, which all ranks close after
    the same step."""

    def __init__(self, world: World, groups: Mapping[Dimension, dist.ProcessGroup] | None = None) -> None:
        """`groups`: this rank's process group of each dimension of a mesh with two."""
        self._world = world
        self._groups = {PHASE_OF_DIMENSION[name]: group for name, group in (groups or {}).items()}
        self._open = 0  # steps since the last window was closed
        self._windows: deque[int] = deque()
        self._reductions = AsyncReductionQueue[list[int]](world)
        self._arrived: list[list[list[float]]] = []
        """Minima of the oldest window that have arrived."""

    def step_done(self) -> None:
        self._open += 1

    def due(self, *, everything: bool) -> int:
        """Close the window; the number of steps that all ranks compare next.

        On a GPU the newest window waits for the next call, when its clock can be read without waiting for
        queued work; `everything` includes it.
        """
        if self._open:
            self._windows.append(self._open)
            self._open = 0
        held_back = 1 if self._world.device.type == "cuda" and not everything else 0
        count = 0
        while len(self._windows) > held_back:
            count += self._windows.popleft()
        return count

    def submit(
        self,
        exposed_s: Sequence[Sequence[float]],
        within: Sequence[Mapping[int, Sequence[float]]] = (),
        *,
        wait: bool = False,
    ) -> None:
        """Compare the exposed communication of the `due` steps. All ranks together.

        For each step: the seconds in the backward pass, which may be UNMEASURED, then those in each control
        synchronisation; every rank has the same number of them. `within` has the seconds within groups.
        """
        self._compare(exposed_s, None, wait)
        for phase, group in self._groups.items():
            self._compare([step.get(phase, ()) for step in within], group, wait)

    def _compare(
        self, seconds: Sequence[Sequence[float]], group: dist.ProcessGroup | None, wait: bool
    ) -> None:
        flat = list(itertools.chain.from_iterable(seconds))
        # from pinned memory: a copy from pageable memory would wait for all queued work
        on_gpu = self._world.device.type == "cuda"
        own = torch.tensor(flat, dtype=torch.float64, pin_memory=on_gpu)
        values = own.to(self._world.device, non_blocking=True)
        self._reductions.submit([len(step) for step in seconds], values, dist.ReduceOp.MIN, group, wait=wait)

    def ready(self, wait: bool = False) -> list[float | None]:
        """Transfer seconds of the steps whose comparison has arrived, oldest first; with `wait`, of all. None
        where the communication of some rank was UNMEASURED."""
        found: list[float | None] = []
        for counts, minima in self._reductions.ready(wait):
            values = iter(minima.tolist())
            self._arrived.append([list(itertools.islice(values, count)) for count in counts])
            if len(self._arrived) == 1 + len(self._groups):
                for of_all, *of_groups in zip(*self._arrived, strict=True):
                    found.append(None if of_all[0] < 0 else sum(of_all) + sum(map(sum, of_groups)))
                self._arrived.clear()
        return found
