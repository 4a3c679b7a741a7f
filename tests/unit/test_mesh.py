"""The mesh: ranks that read different samples, whatever else they share."""

from __future__ import annotations

import pytest
import torch

from disttrain.config.batch_plan import plan_batch
from disttrain.config.sections.parallel import HSDPConfig, ParallelConfig
from disttrain.data.loader import GlobalOrder, RankBatches
from disttrain.errors import ConfigError
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.runtime.process_group import World


def world(rank: int, nodes: int, per_node: int) -> World:
    return World(
        rank=rank, size=nodes * per_node, local_rank=rank % per_node, local_size=per_node,
        device=torch.device("cpu"), backend=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "nodes", "per_node", "shard_size", "layout"),
    [
        ("fsdp", 2, 4, None, (1, 8)),
        ("hsdp", 2, 4, None, (2, 4)),
        ("hsdp", 4, 1, None, (4, 1)),
        ("hsdp", 4, 1, 2, (2, 2)),
        ("hsdp", 1, 1, None, (1, 1)),
    ],
)
def test_sharding_strategies_divide_the_world(strategy, nodes, per_node, shard_size, layout):
    config = ParallelConfig(hsdp=HSDPConfig(shard_size=shard_size))
    meshes = [
        build_strategy(strategy, config).mesh(world(rank, nodes, per_node))
        for rank in range(nodes * per_node)
    ]
    assert {(mesh.replicate, mesh.shard) for mesh in meshes} == {layout}
    assert [mesh.data_rank for mesh in meshes] == list(range(nodes * per_node))


def test_a_shard_that_does_not_divide_the_world_is_refused():
    config = ParallelConfig(hsdp=HSDPConfig(shard_size=3))
    with pytest.raises(ConfigError, match=r"parallel.hsdp.shard_size=3 does not divide the 4 ranks"):
        build_strategy("hsdp", config).mesh(world(0, 2, 2))


def test_stages_of_a_pipeline_read_the_same_samples_and_shards_do_not():
    meshes = [Mesh(rank, replicate=2, shard=2, pipeline=2) for rank in range(8)]
    assert [mesh.data_rank for mesh in meshes] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {(mesh.size, mesh.data_size) for mesh in meshes} == {(8, 4)}


def test_the_samplers_of_the_data_parallel_ranks_cover_each_global_batch_once():
    plan = plan_batch(2, 8, 2)
    meshes = [Mesh(rank, replicate=2, pipeline=2) for rank in range(4)]
    read = [
        [i for batch in RankBatches(GlobalOrder(16, 0), plan, mesh.data_rank, 2) for i in batch]
        for mesh in meshes
    ]
    assert read[0] == read[2]
    assert read[1] == read[3]
    assert sorted(read[0] + read[1]) == list(range(16))
