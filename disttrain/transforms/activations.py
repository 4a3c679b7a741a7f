"""Activations, tensors that a forward pass keeps for the backward pass: computed again, or in host memory.

Checkpointing (Chen et al. 2016, arXiv:1604.06174) repeats the forward pass of a block. Gradients stay bitwise
equal: the repeated pass draws the same random numbers and leaves the running statistics of batch norms
unchanged. Offload copies on the stream of the compute, so the allocators of both sides order the copies, and
a pass takes their time longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from disttrain.errors import ConfigError
from disttrain.models.hooks import blocks_of, mix_in

Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
"""Contexts of the first and of the repeated forward pass."""

_aten = torch.ops.aten
SAVED_OPERATORS = (
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
)
"""Operators whose outputs `selective` keeps: matrix products, convolutions and attention, which hold nearly
all FLOPs of a block. Norms, activation functions and element-wise operators are computed again."""


def checkpoint_activations(model: nn.Module, mode: str, every: int = 1) -> nn.Module:
    """Recompute blocks of `model` in the backward pass; the model itself, changed in place.

    `full`: every block. `every-n`: of `every` successive blocks, the first. `selective`: every block, but the
    outputs of `SAVED_OPERATORS` are kept. Raises `ConfigError` for a model without blocks.
    """
    blocks = list(blocks_of(model).values())
    if not blocks:
        raise ConfigError(
            f"memory.activation_checkpointing={mode}: {type(model).__name__} has no blocks; give it an "
            "attribute `blocks`, or use memory.activation_checkpointing=none"
        )
    for block in blocks[:: every if mode == "every-n" else 1]:
        _recompute(block, selective=mode == "selective")
    return model


class Recomputed(nn.Module):
    """Mixed into the class of a block: the forward pass keeps its inputs alone."""

    _contexts: Contexts
    _compiled_contexts: dict[str, Any]
    """Contexts within a compiled graph, which updates running statistics once by itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            contexts = self._compiled_contexts
        else:
            contexts = {"context_fn": self._contexts}
        return checkpoint(super().forward, *args, use_reentrant=False, **contexts, **kwargs)


def _recompute(block: nn.Module, selective: bool) -> None:
    norms = [module for module in block.modules() if isinstance(module, _NormBase)]
    mix_in(block, Recomputed)
    vars(block)["_contexts"] = partial(_contexts, norms, selective)
    vars(block)["_compiled_contexts"] = {"context_fn": _saving_contexts} if selective else {}


def _contexts(
    norms: list[_NormBase], selective: bool
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    first, repeated = _saving_contexts() if selective else (nullcontext(), nullcontext())
    return first, _without_statistics(norms, repeated)


def _saving_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return create_selective_checkpoint_contexts(list(SAVED_OPERATORS))


@contextmanager
def _without_statistics(norms: list[_NormBase], context: AbstractContextManager[None]) -> Iterator[None]:
    """`context`, in which batch norms leave their running statistics as they are.

    A momentum of 0 keeps the statistics, yet the operator saves the same tensors as in the first pass.
    """
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with context:
            yield
    finally:
        for norm, (momentum, batches) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


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

    Parameters keep their names. Raises `ConfigError` on a device without memory of its own, also for an
    estimate of memory.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"memory.offload_activations=true needs a GPU, and this rank computes on {device.type}; use "
            "memory.activation_checkpointing"
        )
    mix_in(model, Offloaded)
    return model
