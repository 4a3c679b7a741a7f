"""Tensors that all ranks take from rank 0: the initial weights, and buffers.

Rank 0 builds the model, the other ranks build it on the meta device, without memory. So that every strategy
begins with the same weights, a transform runs on all ranks, and rank 0's tensors are sent after it, one by
one. Rank 0 holds the whole model in host memory until all ranks have their parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor, distribute_tensor

from disttrain.runtime.process_group import World


def build_on_rank_0(make: Callable[[], nn.Module], world: World) -> nn.Module:
    """The model of `make`: on rank 0 in host memory, on the others on the meta device.

    A model that reads values of its tensors, or that keeps a tensor which is neither a parameter nor a
    buffer, is in host memory on every rank.
    """
    if world.rank > 0:
        try:
            with torch.device("meta"):
                model = make()
        except Exception:  # without values, a constructor may fail in any way
            return make()
        attributes = (value for module in model.modules() for value in vars(module).values())
        if not any(isinstance(value, Tensor) for value in attributes):
            return model
    return make()


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, detached; a tied one under each of its names."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in tensors.items()}


@torch.no_grad()
def fill(model: nn.Module, initial: Mapping[str, Tensor], world: World) -> None:
    """Overwrite the parameters and buffers of `model` with those of rank 0's `initial` by name; of a sharded
    one, the part that this rank holds. Collective: all ranks call it with the same names."""
    tensors = named_tensors(model)
    for name, tensor in initial.items():
        whole = tensor.to(world.device) if world.rank == 0 else torch.empty_like(tensor, device=world.device)
        world.broadcast(whole)
        if name in tensors and isinstance(target := tensors[name], DTensor):
            part = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(part.to_local())
        elif name in tensors:
            tensors[name].copy_(whole)


@torch.no_grad()
def broadcast_buffers(model: nn.Module, world: World) -> None:
    """Overwrite the buffers of `model` with those of rank 0, by one broadcast per dtype. All ranks
    together."""
    if world.size == 1:
        return
    for buffers in _take_tensors(list(model.buffers()), sys.maxsize):
        parts = _unflatten_dense_tensors(world.broadcast(_flatten_dense_tensors(buffers)), buffers)
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part)
