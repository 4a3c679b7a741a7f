"""`fully_shard` on two dimensions: the ranks of a node share one copy of the parameters, nodes hold copies.

Parameters travel within a node. Gradients are averaged by a reduce-scatter within the node, and then by an
all-reduce of the shards across nodes.
"""

from __future__ import annotations

from disttrain.config.sections.parallel import FSDPConfig, HSDPConfig, ParallelConfig
from disttrain.parallel.base import Mesh
from disttrain.parallel.fsdp import FSDP
from disttrain.runtime.process_group import World


class HSDP(FSDP):
    """`FSDP` on a mesh of `replicate` x `shard` ranks. Consecutive ranks, those of a node, share a copy."""

    def __init__(self, options: FSDPConfig, layout: HSDPConfig) -> None:
        super().__init__(options)
        self._layout = layout

    def mesh(self, world: World) -> Mesh:
        shard = self._layout.shard_size or world.local_size
        return Mesh(rank=world.rank, replicate=world.size // shard, shard=shard)


def build(config: ParallelConfig) -> HSDP:
    return HSDP(config.fsdp, config.hsdp)
