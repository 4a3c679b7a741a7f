"""Which rank reads which sample, and when.

One endless stream of sample indices, the same on every rank: epoch after epoch, each a permutation seeded
by (seed, epoch). An optimizer step takes the next `global` positions of the stream and each rank a part of
them, so the number of ranks changes who reads a sample, never which samples form a step:

    samples 5, global batch 4      stream  3 0 4 1 2 | 2 1 3 0 4 | ...
    step 0: 3 0 4 1   step 1: 2 2 1 3   (nothing is dropped where an epoch ends)
    2 ranks, local batch 1:        rank 0 reads 3, 4, then 2, 1;   rank 1 reads 0, 1, then 2, 3

To resume is to start at a later step: no state beyond the step number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disttrain.config.batch_plan import BatchPlan
from disttrain.errors import ConfigError

_BLOCK = 64
"""Micro-steps whose indices are looked up at once: a few at a time would cost tens of microseconds each."""


class GlobalOrder:
    """The endless stream of epochs over `samples` indices."""

    def __init__(self, samples: int, seed: int) -> None:
        if samples < 1:
            raise ConfigError("data: the training split has no samples")
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, np.int64)

    def take(self, start: int, stop: int) -> np.ndarray:
        """Sample indices at the stream positions [start, stop)."""
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.samples)
            count = min(stop - start, self.samples - offset)
            parts.append(self._of_epoch(epoch)[offset : offset + count])
            start += count
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _of_epoch(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:  # readers move forward, so the current epoch is all they need
            self._permutation = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
            self._epoch = epoch
        return self._permutation


class RankBatches:
    """Batch sampler of one rank: for each micro-step of steps [start_step, steps), its `plan.local` indices.

    Step s covers the stream positions [s*G, (s+1)*G) for a global batch G; in it, micro-step m of rank r
    takes the `local` positions from s*G + (m*world + r)*local on.
    """

    def __init__(
        self, order: GlobalOrder, plan: BatchPlan, rank: int, steps: int, start_step: int = 0
    ) -> None:
        self.order = order
        self.plan = plan
        self.rank = rank
        self.steps = steps
        self.start_step = start_step

    @property
    def first(self) -> int:
        """Number of the first micro-step: they are evenly spaced, across steps too."""
        return self.start_step * self.plan.accumulation

    def __len__(self) -> int:
        return max(0, self.steps - self.start_step) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        local, stride = self.plan.local, self.plan.local * self.plan.world
        last = self.first + len(self)
        for begin in range(self.first, last, _BLOCK):
            end = min(begin + _BLOCK, last)
            block = self.order.take(begin * stride, end * stride).reshape(end - begin, stride)
            yield from block[:, self.rank * local : (self.rank + 1) * local].tolist()
