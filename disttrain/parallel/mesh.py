"""The mesh: positions of the ranks along the dimensions pipeline, replicate and shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mesh:
    """World rank = (pipeline * replicate size + replicate) * shard size + shard, each index from 0.

    Ranks that differ in `replicate` or `shard` read different samples; ranks that differ in `pipeline` alone
    hold different layers and read the same samples.
    """

    rank: int
    replicate: int = 1
    """Copies of the parameters."""
    shard: int = 1
    """Ranks that share one copy of the parameters."""
    pipeline: int = 1
    """Pipeline stages."""

    @property
    def size(self) -> int:
        """Ranks of the mesh, which is the world."""
        return self.replicate * self.shard * self.pipeline

    @property
    def data_size(self) -> int:
        """Number of ranks that read different samples."""
        return self.replicate * self.shard

    @property
    def stage(self) -> int:
        """Pipeline stage of this rank."""
        return self.rank // self.data_size

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """World ranks of this rank's stage, which hold the same layers."""
        return tuple(range(self.stage * self.data_size, (self.stage + 1) * self.data_size))

    @property
    def data_rank(self) -> int:
        """Position of this rank among those that read different samples: the sampler's rank."""
        return self.rank % self.data_size
