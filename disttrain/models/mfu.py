"""Model FLOPs utilization (MFU): the fraction of a device's peak that the model's FLOPs reach.

MFU = model FLOP/s of a rank / peak FLOP/s of its device in the dtype of its matmuls (PaLM, arXiv 2204.02311)

Recomputed activations do not count as model FLOPs. A peak counts dense arithmetic only
(`disttrain.models.peaks`). A device that is not in the table has no MFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from disttrain.models import peaks
from disttrain.models.counting import CONVOLUTION, MATMUL


@dataclass(frozen=True)
class Peak:
    """Peak rate of a device on a model's mix of work, if known."""

    dtypes: dict[str, str] | None
    """Dtype of each kind of work; None where weights have several dtypes."""
    flops_per_s: float | None
    source: str | None
    reason: str
    """Reason for a missing peak, else empty."""


def peak_of(
    device: str,
    model: nn.Module,
    flops: Mapping[str, int],
    on: torch.device,
    autocast_dtype: torch.dtype | None = None,
) -> Peak:
    """Peak rate for this model's mix of work. `device` is the device's name, `on` the device itself."""
    if not flops:
        return Peak(None, None, None, "the model's FLOPs could not be counted")
    dtypes = arithmetic(model, on, autocast_dtype)
    if dtypes is None:
        return Peak(None, None, None, "weights of several dtypes: no single peak applies")
    dtypes = {kind: dtypes[kind] for kind in flops}
    known = peaks.find(device)
    if known is None:
        return Peak(dtypes, None, None, f"no peak is known for device {device!r}")
    rate, reason = peaks.combined(known, flops, dtypes)
    return Peak(dtypes, rate, known.source if rate else None, reason)


def arithmetic(
    model: nn.Module, on: torch.device, autocast_dtype: torch.dtype | None = None
) -> dict[str, str] | None:
    """Dtype of matmuls and convolutions: that of autocast, else of the weights, or `tf32` where torch's
    settings use TF32 for float32 on the device. None where weights have several dtypes."""
    if autocast_dtype is not None:
        return dict.fromkeys((MATMUL, CONVOLUTION), _name(autocast_dtype))
    weights = {p.dtype for p in model.parameters() if p.dim() >= 2 and p.is_floating_point()}
    if len(weights) != 1:
        return None
    name = _name(weights.pop())
    if name != "float32":
        return {MATMUL: name, CONVOLUTION: name}
    has_tf32 = on.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(on) >= (8, 0))
    settings = {
        MATMUL: torch.backends.cuda.matmul.fp32_precision,
        CONVOLUTION: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    }
    return {kind: "tf32" if has_tf32 and word == "tf32" else "float32" for kind, word in settings.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
