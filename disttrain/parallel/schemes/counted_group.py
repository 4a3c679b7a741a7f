"""Collectives of one process group, with a count of the bytes that a rank hands over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from disttrain.runtime.process_group import World

MESSAGE_BYTES = 25 * 2**20
"""Tensors are averaged together up to this size, which is that of DDP's buckets."""


class CountedGroup:
    """Blocking collectives of `group`; None is the default process group.

    With NCCL, "blocking" holds for the current stream of the device, not for the host.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, local_size: int = 1, timeout: timedelta | None = None
    ) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.local_size = local_size
        """Ranks of a node, which are consecutive."""
        self.bytes: Counter[str] = Counter()
        """Bytes that this rank handed over so far, by kind of collective."""
        self._timeout = timeout

    @classmethod
    def beside_training(cls, world: World) -> CountedGroup:
        """All ranks, in a group in which a thread may communicate beside the training thread. Collective.

        gloo matches collectives of one group by their order, which two threads would mix, so the group is a
        new one. NCCL is called by the training thread alone and needs no second communicator.
        """
        timeout = world.collective_timeout
        group = None if world.backend == "nccl" else dist.new_group(timeout=timeout)
        return cls(group, world.local_size, timeout)

    def subgroup(self, ranks: Sequence[int]) -> CountedGroup | None:
        """A group of `ranks`; None on a rank outside. Collective: all ranks of the world call it."""
        group = dist.new_group(list(ranks), timeout=self._timeout)
        return CountedGroup(group) if dist.get_rank() in ranks else None

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with the sum over ranks, and return it."""
        self._count("all_reduce", tensor)
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with the mean over ranks, and return it."""
        return self.all_reduce(tensor.div_(self.size))

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite each tensor with its mean over ranks, several in one all-reduce."""
        for together in _take_tensors(tensors, MESSAGE_BYTES):
            mean = self.mean(_flatten_dense_tensors(together))
            parts = _unflatten_dense_tensors(mean, together)
            for tensor, part in zip(together, parts, strict=True):
                tensor.copy_(part)

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
