"""Collectives of one process group, with a count of the bytes that a rank hands over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from disttrain.runtime.process_group import World


class CountedGroup:
    """Blocking collectives of `group`; None is the default process group.

    With NCCL, "blocking" holds for the current stream of the device, not for the host.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.bytes: Counter[str] = Counter()
        """Bytes that this rank handed over so far, by kind of collective."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with the sum over ranks, and return it."""
        self._count("all_reduce", tensor)
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with the mean over ranks, and return it."""
        return self.all_reduce(tensor.div_(self.size))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The `tensor` of every rank, stacked along a new first dimension."""
        self._count("all_gather", tensor)
        gathered = tensor.new_empty((self.size, *tensor.shape))
        dist.all_gather(list(gathered), tensor, group=self.group)
        return gathered

    def reduce(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` of the group's rank 0 with the sum over ranks; that of the others becomes
        undefined."""
        self._count("reduce", tensor)
        dist.reduce(tensor, group=self.group, group_dst=0)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with that of the group's rank 0, and return it."""
        self._count("broadcast", tensor)
        dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor

    def _count(self, kind: str, tensor: Tensor) -> None:
        self.bytes[kind] += tensor.nbytes


def own_group(world: World) -> CountedGroup:
    """A group of all ranks in which a thread may communicate beside the training thread. All ranks together.

    gloo matches collectives of one group by their order, which two threads would mix, so the group is a new
    one. NCCL is called by the training thread alone and needs no second communicator.
    """
    if world.backend == "nccl":
        return CountedGroup()
    return CountedGroup(dist.new_group(timeout=world.collective_timeout))


def subgroup(world: World, ranks: Sequence[int]) -> CountedGroup | None:
    """A group of `ranks`; None on a rank outside. All ranks of the world together."""
    group = dist.new_group(list(ranks), timeout=world.collective_timeout)
    return CountedGroup(group) if world.rank in ranks else None
