"""Buffers of a model, equal on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from disttrain.runtime.process_group import World


@torch.no_grad()
def broadcast_buffers(model: nn.Module, world: World) -> None:
    """Overwrite the buffers of `model` with those of rank 0, by one broadcast per dtype. All ranks
    together."""
    if world.size == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in model.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        flat = world.broadcast(torch.cat([buffer.flatten() for buffer in buffers]))
        for buffer, part in zip(buffers, flat.split([each.numel() for each in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))
