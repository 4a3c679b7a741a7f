"""Device of a rank, and facts about its machine: processors, device name, NCCL version."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch

from disttrain.errors import ConfigError


def choose_device(requested: str, local_rank: int, local_size: int) -> torch.device:
    """The device of a rank for `resources.device=requested`; a CUDA device becomes the current one.

    `shared` puts every rank of a node on its first GPU. `auto` takes the CPU where `local_size` ranks see
    fewer GPUs. Raises `ConfigError` when the requested GPUs are not visible.
    """
    count = torch.cuda.device_count() if requested != "cpu" else 0
    if requested == "shared":
        if not count:
            raise ConfigError("resources.device=shared, but no CUDA device is visible")
        local_rank = 0
    elif count < local_size:
        if requested == "cuda":
            raise ConfigError(
                f"resources.device=cuda, but {count} CUDA devices are visible to "
                f"{local_size} ranks on this node"
            )
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def machine_id() -> str:
    """The kernel's boot id: equal for all ranks on one machine, also in different containers.

    The host name on systems without a boot id.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def usable_cpus() -> int:
    """Number of processors in this process's affinity mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The GPU's name as its driver reports it, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def nccl_version() -> str | None:
    """Version of the NCCL that torch was built with; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())
