"""The share of a checkpoint that each rank saves, and its copy in host memory.

DCP plans a save on one rank, from the plans of all ranks, and each plan lists all replicated tensors. Here
each rank derives its share by itself, without communication.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from disttrain.records.checkpoint import CheckpointTensor

State = dict[str, Tensor]
"""Tensors by name."""
Layout = tuple[tuple[int, ...] | None, str]
"""The ranks that hold the same state, and a digest of names, shapes and dtypes, equal on all of them."""


@dataclass(frozen=True)
class CapturedState:
    """The tensors of one rank that belong to a checkpoint. They share memory with the live state."""

    replicated: State
    """Tensors that all `holders` have under the same names, whole with the same values or sharded; each saves
    a share."""
    own: State
    """Tensors that this rank alone saves; no other rank has these names."""
    holders: tuple[int, ...] | None = None
    """World ranks with the same `replicated`, this one included; None: all ranks."""


@dataclass(frozen=True)
class Share:
    """The tensors that one rank saves: first shards, so that those of equal shapes have equal positions in
    the files of all ranks, then whole tensors."""

    tensors: State
    described: dict[str, CheckpointTensor]
    layout: Layout


def own_share(state: CapturedState, rank: int, world_size: int) -> Share:
    """The tensors and the shards of tensors that `rank` of `world_size` saves."""
    tensors: State = {}
    described = {}
    sharded = {name: value for name, value in state.replicated.items() if isinstance(value, DTensor)}
    for number, name in enumerate(sorted(sharded, key=lambda name: (-sharded[name].nbytes, name))):
        shard, entry = sharded[name].to_local(), describe(sharded[name])
        if shard.numel() and _is_saved_here(sharded[name], number):
            [position] = sharded[name].__create_chunk_list__()  # the interface that DCP uses
            if (position.offsets, position.sizes) != entry.chunk(rank):
                raise ValueError(f"{name}: a manifest cannot describe {sharded[name].placements}")
            tensors[name], described[name] = shard, entry
    holders = range(world_size) if state.holders is None else state.holders
    whole = {name: value for name, value in state.replicated.items() if name not in sharded}
    chosen = assign({name: value.nbytes for name, value in whole.items()}, len(holders))
    alone = {name: whole[name] for name, index in chosen.items() if holders[index] == rank} | state.own
    described |= {name: describe(value) for name, value in alone.items()}
    names = sorted((name, tuple(t.shape), str(t.dtype)) for name, t in state.replicated.items())
    digest = hashlib.sha256(repr(names).encode()).hexdigest()
    return Share(tensors | alone, described, (state.holders, digest))


def describe(tensor: Tensor) -> CheckpointTensor:
    """The entry of a tensor in the manifest."""
    mesh: tuple[int, ...] = ()
    placements: tuple[int | None, ...] = ()
    if isinstance(tensor, DTensor):
        mesh = tuple(tensor.device_mesh.shape)
        placements = tuple(p.dim if isinstance(p, Shard) else None for p in tensor.placements)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return CheckpointTensor(dtype=dtype, shape=tuple(tensor.shape), mesh=mesh, placements=placements)


def assign(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The rank that saves each tensor of `sizes`, in bytes: the largest first, each to the rank with least.

    Every rank computes the same result. No rank gets more than the mean and the largest tensor together.
    """
    loads = [(0, rank) for rank in range(world_size)]
    ranks = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, rank = loads[0]
        ranks[name] = rank
        heapq.heapreplace(loads, (load + sizes[name], rank))
    return ranks


def _is_saved_here(tensor: DTensor, number: int) -> bool:
    """Whether this rank saves its shard, and not another rank with the same shard: they take turns by the
    `number` of the tensor."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is in the mesh of its parameters"
    for size, own, placement in zip(tensor.device_mesh.shape, coordinate, tensor.placements, strict=True):
        if placement.is_replicate():
            if number % size != own:
                return False
            number //= size
    return True


class HostBuffers:
    """Copies of tensors in host memory, whose buffers the next copy uses again.

    Buffers of CUDA tensors are pinned. The device then copies at the rate of the bus and in the order of its
    stream: the host does not wait, and training cannot change a tensor before its copy.
    """

    def __init__(self) -> None:
        self._buffers: State = {}
        self._copied: torch.cuda.Event | None = None

    def copy(self, state: State) -> State:
        """Begin to copy `state`, over the copies of the call before. Call `wait` before they are read."""
        self._buffers = {name: self._buffer(name, value) for name, value in state.items()}
        for name, value in state.items():
            self._buffers[name].copy_(value.detach(), non_blocking=True)
        if any(value.is_cuda for value in state.values()):
            self._copied = torch.cuda.Event()
            self._copied.record()
        return self._buffers

    def wait(self) -> None:
        """Wait until the copies are complete; from any thread."""
        if self._copied is not None:
            self._copied.synchronize()

    def _buffer(self, name: str, value: Tensor) -> Tensor:
        kept = self._buffers.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (value.shape, value.dtype):
            return kept
        return torch.empty_like(value, device="cpu", pin_memory=value.is_cuda, requires_grad=False)
