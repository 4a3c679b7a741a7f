"""Cost of a model: parameters, FLOPs per sample, and the peak rate of its device on this mix of work.

Model FLOPs utilization (MFU) = model FLOP/s of a rank / peak FLOP/s of its device in the dtype of its matmuls
(PaLM, arXiv 2204.02311). Recomputed activations do not count as model FLOPs. A peak counts dense arithmetic
only (`disttrain.models.peaks`); a device that is not in the table has no MFU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from disttrain.models import peaks
from disttrain.runtime.device import device_name

METHOD = "3 x counted forward matmul and convolution FLOPs"
"""Backward costs twice the forward: one product for the inputs' gradient, one for the weights' (PaLM,
arXiv 2204.02311, appendix B). A multiply-add is 2 FLOPs; attention counts as if it were not causal;
padding of a vocabulary counts, as in Megatron-LM; element-wise work, norms, look-ups and recomputation do not
count."""

MATMUL, CONVOLUTION = "matmul", "convolution"
"""Kinds of counted work; a device may compute them in different precision."""


@dataclass(frozen=True)
class Peak:
    """Peak rate of a device on a model's mix of work, if known."""

    dtypes: dict[str, str] | None = None
    """Dtype of each kind of work; None where weights have several dtypes."""
    flops_per_s: float | None = None
    source: str | None = None
    reason: str = ""
    """Reason for a missing peak, else empty."""


@dataclass(frozen=True)
class ModelCost:
    """Counted on the whole model, before a transform or a strategy changes it."""

    parameters: int
    flops_per_sample: int | None = None
    peak: Peak = Peak()

    def metrics_fields(self) -> dict[str, Any]:
        """Parameters, FLOPs and peak as fields of `Metrics`."""
        return {
            "parameters": self.parameters,
            "model_flops_per_sample": self.flops_per_sample,
            "flops_method": METHOD if self.flops_per_sample else None,
            "compute_dtypes": self.peak.dtypes,
            "peak_flops": self.peak.flops_per_s,
            "peak_source": self.peak.source,
        }


def count_cost(
    model: nn.Module, inputs: Tensor, device: torch.device, autocast_dtype: torch.dtype | None = None
) -> ModelCost:
    """Count a model that will run on `device`; its state stays as it is.

    A model that is elsewhere, on the meta device or in host memory, has a forward pass that computes shapes
    only. `inputs` is one sample. `autocast_dtype` is the dtype of its training steps under autocast; None:
    without autocast.
    """
    flops = flops_per_sample(model, inputs, device)
    return ModelCost(
        parameters=sum(p.numel() for p in model.parameters()),
        flops_per_sample=sum(flops.values()) or None,
        peak=peak_of(device_name(device), model, flops, device, autocast_dtype),
    )


def flops_per_sample(model: nn.Module, inputs: Tensor, device: torch.device | None = None) -> dict[str, int]:
    """FLOPs of training on one sample (`METHOD`) by kind of work; empty if the model has no counted
    operators.

    `model` is the unwrapped model, `inputs` one sample. Runs one forward pass without gradients in evaluation
    mode, which leaves weights, running statistics and random state unchanged. Where the model is not on
    `device` (its own by default, the meta device apart), the pass computes shapes only, and the result is
    empty for a model that reads values of its tensors, or cannot run so.
    """
    placed = next((parameter.device for parameter in model.parameters()), inputs.device)
    was_training = model.training
    model.eval()
    shapes_only = placed.type == "meta" or placed.type != (device or placed).type
    try:
        # fused attention kernels of some devices have no FLOP formula; the math kernel consists of matmuls
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            batch = inputs[None].to(placed)
            if shapes_only:
                with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    with FakeCopyMode(mode):  # a model that keeps a tensor of its pass would keep a fake one
                        copied = copy.deepcopy(model)
                    copied(mode.from_tensor(batch))
            else:
                model(batch)
    except Exception:  # any type: a kernel may assert that its tensors are on a GPU
        if not shapes_only:
            raise
        return {}  # a part of the count would be a wrong one
    finally:
        model.train(was_training)
    found: dict[str, int] = {}
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        kind = CONVOLUTION if "conv" in str(operator) else MATMUL
        found[kind] = found.get(kind, 0) + 3 * flops
    return {kind: flops for kind, flops in found.items() if flops}


def peak_of(
    device: str,
    model: nn.Module,
    flops: Mapping[str, int],
    on: torch.device,
    autocast_dtype: torch.dtype | None = None,
) -> Peak:
    """Peak rate for this model's mix of work. `device` is the device's name, `on` the device itself."""
    if not flops:
        return Peak(reason="the model's FLOPs could not be counted")
    dtypes = arithmetic(model, on, autocast_dtype)
    if dtypes is None:
        return Peak(reason="weights of several dtypes: no single peak applies")
    dtypes = {kind: dtypes[kind] for kind in flops}
    known = peaks.find(device)
    if known is None:
        return Peak(dtypes, reason=f"no peak is known for device {device!r}")
    rate, reason = peaks.combined(known, flops, dtypes)
    return Peak(dtypes, rate, known.source if rate else None, reason)


def arithmetic(
    model: nn.Module, on: torch.device, autocast_dtype: torch.dtype | None = None
) -> dict[str, str] | None:
    """Dtype of matmuls and convolutions: that of autocast, else of the weights, or `tf32` where torch's
    settings use TF32 for float32 on the device. None where weights have several dtypes."""
    weights = (p.dtype for p in model.parameters() if p.dim() >= 2 and p.is_floating_point())
    dtypes = {*weights} if autocast_dtype is None else {autocast_dtype}
    if len(dtypes) != 1:
        return None
    name = str(dtypes.pop()).removeprefix("torch.")
    names = {MATMUL: name, CONVOLUTION: name}
    on_cuda = name == "float32" and on.type == "cuda"
    if on_cuda and (torch.version.hip or torch.cuda.get_device_capability(on) >= (8, 0)):
        settings = {
            MATMUL: torch.backends.cuda.matmul.fp32_precision,
            CONVOLUTION: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        }
        names |= {kind: word for kind, word in settings.items() if word == "tf32"}
    return names
