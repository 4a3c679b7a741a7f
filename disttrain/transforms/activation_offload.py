"""Activation offload: tensors kept for the backward pass wait in pinned host memory, not on the GPU.

The copies run on the stream of the compute, so the allocators of both sides order them, and a pass takes the
time of the copies longer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from disttrain.errors import ConfigError
from disttrain.models.blocks import mix_in

SMALLEST_BYTES = 1 << 20
"""Smaller tensors stay on the device: their copies would cost more time than they save memory."""

Packed = Tensor | tuple[torch.device, Tensor]
"""A tensor that stayed, or its device and its copy in host memory."""


class Offloaded(nn.Module):
    """Mixed into the class of a model: its forward pass keeps activations in host memory."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters = {parameter.untyped_storage().data_ptr() for parameter in self.parameters()}

        def pack(tensor: Tensor) -> Packed:
            stays = tensor.untyped_storage().data_ptr() in parameters or _is_cast_parameter(tensor)
            if stays or tensor.nbytes < SMALLEST_BYTES:
                return tensor
            pinned = tensor.device.type == "cuda"
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            host.copy_(tensor, non_blocking=pinned)
            return tensor.device, host

        with saved_tensors_hooks(pack, unpack):
            return super().forward(*args, **kwargs)


def _is_cast_parameter(tensor: Tensor) -> bool:
    """Whether `tensor` is, or views, the copy of a parameter that autocast keeps until the pass ends."""
    copied = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    function = copied.grad_fn
    if function is None or function.name() != "ToCopyBackward0":
        return False
    return isinstance(getattr(function.next_functions[0][0], "variable", None), nn.Parameter)


def unpack(packed: Packed) -> Tensor:
    """The tensor on the device that it was computed on."""
    if isinstance(packed, Tensor):
        return packed
    device, host = packed
    return host.to(device, non_blocking=True)


def offload_activations(model: nn.Module, device: torch.device) -> nn.Module:
    """Keep the activations of `model` in host memory; the model itself, changed in place.

    Parameters keep their names. Raises `ConfigError` on a device without memory of its own.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"memory.offload_activations=true needs a GPU, and this rank computes on {device.type}; use "
            "memory.activation_checkpointing"
        )
    mix_in(model, Offloaded)
    return model
