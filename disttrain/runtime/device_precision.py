"""Precision of the compute on a device: the choice of `auto`, and precisions that a device does not have."""

from __future__ import annotations

import torch

from disttrain.config.sections.precision import PRECISIONS
from disttrain.errors import ConfigError
from disttrain.runtime.device import device_name

_CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Processor features with bfloat16 arithmetic, on x86 and on Arm."""


def choose_precision(wanted: str, device: torch.device) -> tuple[str, str]:
    """(precision, reason) for `precision.dtype=wanted`. Raises `ConfigError` if the device does not have it.

    A CPU computes fp16 and bf16 in software where it lacks the instructions: slowly, but with the same
    rounding, so both are allowed there.
    """
    if wanted == "fp32":
        return "fp32", "requested"
    name = device_name(device)
    if wanted == "auto":
        if _has_bf16(device):
            return "bf16", f"{name} computes bf16 in hardware"
        return "fp32", f"{name} does not compute bf16 in hardware"
    if device.type == "cpu":
        if wanted == "tf32":
            raise ConfigError("precision.dtype=tf32 needs a GPU, but this rank trains on the CPU; use fp32")
    elif not _has(wanted, device):
        lower = [other for other in ("bf16", "fp16") if _has(other, device)]
        raise ConfigError(
            f"precision.dtype={wanted}: {name} does not compute {wanted} in hardware; "
            f"use {' or '.join([*lower, 'fp32'])}"
        )
    return wanted, "requested"


def use_tf32(enabled: bool) -> None:
    """Let CUDA compute float32 matrix products and convolutions in TF32, or in full float32.

    The settings are PyTorch's older ones. After a change by the newer `fp32_precision`, reading the older
    ones raises, and torch.compile reads them.
    """
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled


def _has_bf16(device: torch.device) -> bool:
    if device.type != "cpu":
        return _has("bf16", device)
    features = torch.cpu.get_capabilities()
    return any(features.get(feature) for feature in _CPU_BF16)


def _has(precision: str, device: torch.device) -> bool:
    return torch.version.hip is not None or (
        torch.cuda.get_device_capability(device) >= PRECISIONS[precision].capability
    )
