"""The global loss curve: the mean over ranks of every step's loss, for one small all-reduce now and then."""

from __future__ import annotations

from collections import deque

import torch

from disttrain.runtime.process_group import World


class GlobalLoss:
    """Collects local losses and reduces them in windows.

    A step's loss on one rank is a mean over equally many samples on every rank, so the mean over ranks
    is the loss of the global batch.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._local: list[tuple[int, torch.Tensor]] = []
        self._reduced: deque[tuple[list[int], torch.Tensor, torch.cuda.Event | None]] = deque()

    def add(self, step: int, loss: torch.Tensor) -> None:
        self._local.append((step, loss))

    def reduce(self) -> None:
        """All ranks together: reduce what was added since the last call, without waiting for the device."""
        if not self._local:
            return
        steps = [step for step, _ in self._local]
        window = torch.stack([loss for _, loss in self._local])
        self._local = []
        if self._world.size > 1:
            # in double precision the sum of single-precision losses is exact: the curve does not depend on
            # where a window begins, nor on the order of summation, and is a resumed run's to the last bit
            window = (self._world.all_reduce(window.double()) / self._world.size).float()
        mean = window.to("cpu", non_blocking=True)
        passed = None
        if window.is_cuda:
            passed = torch.cuda.Event()
            passed.record()
        self._reduced.append((steps, mean, passed))

    def ready(self, wait: bool = False) -> list[tuple[int, float]]:
        """(step, loss) of the windows whose values have arrived, oldest first; with `wait`, of all."""
        found: list[tuple[int, float]] = []
        while self._reduced:
            steps, mean, passed = self._reduced[0]
            if passed is not None:
                if wait:
                    passed.synchronize()
                elif not passed.query():
                    break
            self._reduced.popleft()
            found.extend(zip(steps, mean.tolist(), strict=True))
        return found
