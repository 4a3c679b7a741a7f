"""The part of a sharded tensor that one rank holds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def fill_shard(target: Tensor, whole: Tensor) -> None:
    """Copy `whole`, or of it the part that this rank holds, into `target`. No communication."""
    if isinstance(target, DTensor):
        mesh, placements = target.device_mesh, target.placements
        part = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        target.to_local().copy_(part.to_local())
    else:
        target.copy_(whole)
