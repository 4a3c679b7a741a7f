"""Exposed communication divided into waiting for peers and transfer, without trusting anybody's clock.

All ranks leave a blocking collective together. So in each step, the rank that came to it last had nobody to
wait for: what it spent there is transfer, and what any other rank spent beyond that is waiting. Durations are
compared, never times of day. DDP's backward pass and each meeting of the ranks are compared on their own.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World

METHOD = "min_over_ranks"
UNMEASURED = -1.0
"""In place of seconds: the rank communicated in this step without being able to tell how long."""


class CommSplit:
    """Finds the transfer time of each step: the least that any rank spent in exposed communication.

    Steps are compared in windows, which all ranks close after the same step.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._open = 0  # steps since the last window was closed
        self._windows: deque[int] = deque()
        self._compared: deque[tuple[list[int], torch.Tensor, torch.cuda.Event | None]] = deque()

    def step_done(self) -> None:
        self._open += 1

    def due(self, *, everything: bool) -> int:
        """Close the window; how many steps all ranks compare next.

        On a device the newest window is left for the next time: by then its clock can be read without
        waiting for work that is still queued. `everything` takes it, too.
        """
        if self._open:
            self._windows.append(self._open)
            self._open = 0
        kept = 1 if self._world.device.type == "cuda" and not everything else 0
        count = 0
        while len(self._windows) > kept:
            count += self._windows.popleft()
        return count

    def compare(self, exposed_s: Sequence[Sequence[float]]) -> None:
        """All ranks together: the exposed communication of as many steps as `due` said, each time that they
        communicated in a step on its own. They did so equally often. The first of a step may be UNMEASURED."""
        flat = list(itertools.chain.from_iterable(exposed_s))
        on_device = self._world.device.type == "cuda"
        # from pinned memory: a copy from any other would wait for all that the device has yet to do
        own = torch.tensor(flat, dtype=torch.float64, pin_memory=on_device)
        least = own.to(self._world.device, non_blocking=True)
        self._world.all_reduce(least, dist.ReduceOp.MIN)
        passed = None
        if on_device:
            least = least.to("cpu", non_blocking=True)
            passed = torch.cuda.Event()
            passed.record()
        self._compared.append(([len(step) for step in exposed_s], least, passed))

    def ready(self, wait: bool = False) -> list[float | None]:
        """Transfer time of the steps whose comparison has arrived, oldest first; with `wait`, of all.

        None where some rank's communication was UNMEASURED.
        """
        found: list[float | None] = []
        while self._compared:
            counts, least, passed = self._compared[0]
            if passed is not None and wait:
                passed.synchronize()
            if passed is not None and not passed.query():
                break
            self._compared.popleft()
            values = iter(least.tolist())
            for count in counts:
                step = list(itertools.islice(values, count))
                found.append(None if step[0] < 0 else sum(step))
        return found
