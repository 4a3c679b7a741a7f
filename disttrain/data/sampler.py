"""Batch sampler: the sample indices of each rank and step.

All ranks share one endless stream of sample indices. Each epoch of the stream is a permutation seeded by
(seed, epoch). An optimizer step takes the next `global` positions of the stream, and each rank reads a part
of them. The samples of a step are therefore the same for any number of ranks:

    samples 5, global batch 4      stream  3 0 4 1 2 | 2 1 3 0 4 | ...
    step 0: 3 0 4 1   step 1: 2 2 1 3   (no sample is dropped at the end of an epoch)
    2 ranks, local batch 1:        rank 0 reads 3, 4, then 2, 1;   rank 1 reads 0, 1, then 2, 3

A resumed run starts at a later step; the step number is the only state. Up to `LARGEST_TABLE` samples, each
rank holds the permutation of an epoch as a table; beyond that, it computes each index by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disttrain.config.batch_plan import BatchPlan
from disttrain.data.permutation import FeistelPermutation, TablePermutation
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import SampleOrder

LARGEST_TABLE = 1 << 24
"""Samples up to which an epoch is a table, of 64 MiB per rank."""
_LOOKED_UP = 2048
"""Indices per look-up, if they are of more than one micro-step: a look-up costs tens of microseconds, and a
computed order 0.3 microseconds per index, which falls into one step."""
_BLOCK = 64
"""Largest number of micro-steps per look-up."""


def choose_sample_order(samples: int) -> SampleOrder:
    """The sample order of a new run on `samples` training samples."""
    return "table" if samples <= LARGEST_TABLE else "feistel"


class GlobalOrder:
    """The endless stream of epochs over `samples` indices.

    Raises `ConfigError` if there are no samples.
    """

    def __init__(self, samples: int, seed: int, order: SampleOrder | None = None) -> None:
        if samples < 1:
            raise ConfigError("data: the training split has no samples")
        self.samples = samples
        self.seed = seed
        self.order = order or choose_sample_order(samples)
        self._of_newest_epoch: dict[int, TablePermutation | FeistelPermutation] = {}

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Sample indices at positions of the stream, both of shape (n,)."""
        epochs, offsets = np.divmod(positions, self.samples)
        indices = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            indices[chosen] = self._of_epoch(epoch).at(offsets[chosen])
        return indices

    def _of_epoch(self, epoch: int) -> TablePermutation | FeistelPermutation:
        if epoch not in self._of_newest_epoch:  # positions only increase: one epoch is kept
            self._of_newest_epoch.clear()  # frees the table before the next one is built
            kind = TablePermutation if self.order == "table" else FeistelPermutation
            self._of_newest_epoch[epoch] = kind(self.samples, (self.seed, epoch))
        return self._of_newest_epoch[epoch]


class RankBatches:
    """Batch sampler of one rank: yields the `plan.local` indices of each micro-step in [start_step, steps).

    Step s covers the stream positions [s*G, (s+1)*G) for a global batch G; in it, micro-step m of rank r
    takes the `local` positions that start at s*G + (m*world + r)*local.
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
        """Number of the first micro-step; micro-steps are numbered across steps."""
        return self.start_step * self.plan.accumulation

    def __len__(self) -> int:
        return max(0, self.steps - self.start_step) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        local, world = self.plan.local, self.plan.world
        last = self.first + len(self)
        block = min(_BLOCK, max(1, _LOOKED_UP // local))
        for begin in range(self.first, last, block):
            end = min(begin + block, last)
            starts = (np.arange(begin, end) * world + self.rank) * local
            positions = starts[:, np.newaxis] + np.arange(local)
            yield from self.order.at(positions.ravel()).reshape(positions.shape).tolist()
