"""Model FLOPs per sample, counted by PyTorch's `FlopCounterMode`."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Dataset
from torch.utils.flop_counter import FlopCounterMode

METHOD = "3 x counted forward matmul and convolution FLOPs"
"""Backward costs twice the forward: one product for the inputs' gradient, one for the weights' (PaLM,
arXiv 2204.02311, appendix B). A multiply-add is 2 FLOPs; attention counts as if it were not causal;
padding of a vocabulary counts, as in Megatron-LM; element-wise work, norms, look-ups and recomputation do not
count."""

MATMUL, CONVOLUTION = "matmul", "convolution"
"""Kinds of counted work; a device may compute them in different precision."""


def flops_per_sample(
    model: nn.Module, dataset: Dataset[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> dict[str, int]:
    """FLOPs of training on one sample (`METHOD`) by kind of work; empty if the model has no counted
    operators.

    `model` is the unwrapped model, on `device`. Runs one forward pass without gradients in evaluation mode,
    which leaves weights, running statistics and random state unchanged. On the meta device the pass runs on
    fake tensors, of which models of transformers read no values; empty if a model does.
    """
    inputs = dataset[0][0][None]
    was_training = model.training
    model.eval()
    # fused attention kernels of some devices have no FLOP formula; the math kernel consists of matmuls
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        if device.type == "meta":
            _fake_forward(model, inputs)
        else:
            model(inputs.to(device))
    model.train(was_training)
    found: dict[str, int] = {}
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        kind = CONVOLUTION if "conv" in str(operator) else MATMUL
        found[kind] = found.get(kind, 0) + 3 * flops
    return {kind: flops for kind, flops in found.items() if flops}


def _fake_forward(model: nn.Module, inputs: torch.Tensor) -> None:
    """A forward pass of a model on the meta device, as if model and inputs were on the CPU.

    `torch.func.functional_call` would leave fake tensors in a module that the model has under two names.
    """
    held = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    with FakeTensorMode() as mode, suppress(DynamicOutputShapeException, DataDependentOutputException):
        fakes = {
            id(tensor): torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            for _, _, tensor in held
        }
        try:
            for tensors, name, tensor in held:
                tensors[name] = fakes[id(tensor)]  # type: ignore[assignment]
            model(mode.from_tensor(inputs))
        finally:
            for tensors, name, tensor in held:
                tensors[name] = tensor  # type: ignore[assignment]
