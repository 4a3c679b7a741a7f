"""Device of a rank: its choice, precision and seeds, and facts about the machine."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from disttrain.config.sections.compute import PRECISIONS
from disttrain.errors import ConfigError
from disttrain.records.process_limits import number_after


def choose_device(requested: str, local_rank: int, gpus: int) -> torch.device:
    """The device of a rank for `resources.device=requested`; a CUDA device becomes the current one.

    `gpus` is the number that all ranks of the node need. `shared` puts every rank of a node on its first GPU.
    `auto` takes the CPU on a node with fewer GPUs. Raises `ConfigError` on a node without the requested GPUs,
    and `RuntimeError` on a node with GPUs that CUDA does not find.
    """
    count = torch.cuda.device_count() if requested != "cpu" else 0
    needed = {"cpu": 0, "shared": 1}.get(requested, gpus)
    if count < needed and count < (expected := expected_gpus(os.environ, pci_gpus())):
        raise RuntimeError(
            f"CUDA finds {count} of {expected} NVIDIA GPUs: check `nvidia-smi` and the CUDA build of torch "
            f"({torch.__version__}), or set resources.device=cpu"
        )
    if requested == "shared":
        if not count:
            raise ConfigError("resources.device=shared, but no CUDA device is visible")
        local_rank = 0
    elif count < gpus:
        if requested == "cuda":
            raise ConfigError(
                f"resources.device=cuda, but {count} CUDA devices are visible on this node, where "
                f"resources.gpus_per_node={gpus}"
            )
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def expected_gpus(environ: Mapping[str, str], present: int) -> int:
    """GPUs that this process should find on a node with `present` NVIDIA GPUs.

    `CUDA_VISIBLE_DEVICES` hides GPUs, and a Slurm job uses the ones that it was allocated. Outside Slurm, a
    torch without CUDA counts as a choice of the CPU.
    """
    if "SLURM_JOB_ID" in environ:
        allocated = environ.get("SLURM_GPUS_ON_NODE", "")
        present = min(present, int(allocated) if allocated.isdigit() else 0)
    elif torch.version.cuda is None:
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        present = min(present, sum(name not in ("", "-1", "NoDevFiles") for name in visible.split(",")))
    return present


def pci_gpus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Number of NVIDIA GPUs on the PCI bus, with or without their driver; 0 where the bus cannot be read.

    A GPU bound to another driver, such as nouveau, does not count.
    """
    found = 0
    for device in devices.glob("*"):
        try:
            kind, vendor = (device / "class").read_text(), (device / "vendor").read_text().strip()
        except OSError:
            continue
        driver = (device / "driver").resolve().name
        is_display = kind.startswith("0x03")
        found += is_display and vendor == "0x10de" and driver in ("driver", "nvidia")
    return found


def machine_id() -> str:
    """The kernel's boot id: equal for all ranks on one machine, also in different containers.

    The host name on systems without a boot id.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return socket.gethostname()


def device_name(device: torch.device) -> str:
    """The GPU's name as its driver reports it, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory since `reset_peak_memory`, or since the start of this process: allocated on the GPU, or
    the resident set of a process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = number_after("VmHWM:", Path("/proc/self/status"))  # which some sandboxes lack
    return 1024 * (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new `peak_memory_bytes`, on a CPU where the kernel allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def nccl_version() -> str | None:
    """Version of the NCCL that torch was built with; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


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
        if _has("bf16", device):
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


def _has(precision: str, device: torch.device) -> bool:
    if device.type == "cpu":
        features = torch.cpu.get_capabilities()
        return any(map(features.get, _CPU_BF16))
    return torch.version.hip is not None or (
        torch.cuda.get_device_capability(device) >= PRECISIONS[precision].capability
    )


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch (every device)."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
