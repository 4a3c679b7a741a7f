"""`fully_shard` on two dimensions: the ranks of a node share one copy of the parameters, nodes hold copies.

Parameters travel within a node. Gradients are averaged by a reduce-scatter within the node, and then by an
all-reduce of the shards across nodes.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from disttrain.config.sections.parallel import FSDPConfig, HSDPConfig, ParallelConfig
from disttrain.errors import ConfigError
from disttrain.parallel.base import Mesh
from disttrain.parallel.fsdp import FSDP
from disttrain.runtime.process_group import World


class HSDP(FSDP):
    """`FSDP` on a mesh of `replicate` x `shard` ranks."""

    def __init__(self, options: FSDPConfig, layout: HSDPConfig) -> None:
        super().__init__(options)
        self._layout = layout

    def mesh(self, world: World) -> Mesh:
        shard = self._layout.shard_size or world.local_size
        if world.size % shard:
            raise ConfigError(f"parallel.hsdp.shard_size={shard} does not divide the {world.size} ranks")
        return Mesh(rank=world.rank, replicate=world.size // shard, shard=shard)

    def device_mesh(self, mesh: Mesh, world: World) -> DeviceMesh:
        """Consecutive ranks, those of a node, share a copy."""
        names = ("replicate", "shard")
        return init_device_mesh(world.device.type, (mesh.replicate, mesh.shard), mesh_dim_names=names)


def build(config: ParallelConfig) -> HSDP:
    return HSDP(config.fsdp, config.hsdp)
