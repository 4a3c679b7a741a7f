"""Shards of sharded tensors (DTensors): the part of this rank, and the ranks that hold the same part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Chunk:
    """Position of a shard in its whole tensor."""

    offsets: torch.Size
    whole: torch.Size
    """Shape of the whole tensor."""


def local_shard(tensor: DTensor) -> tuple[Tensor, Chunk]:
    """The shard of this rank, which may be empty, and its position. No communication."""
    [position] = tensor.__create_chunk_list__()  # the interface that DCP uses
    return tensor.to_local(), Chunk(torch.Size(position.offsets), tensor.shape)


def replicas(tensor: DTensor) -> tuple[int, int]:
    """(index of this rank, number) among the ranks that hold the same shard."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is in the mesh of its parameters"
    index, number = 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            index = index * tensor.device_mesh.size(dimension) + coordinate[dimension]
            number *= tensor.device_mesh.size(dimension)
    return index, number
