"""Facts of this node for the pre-flight. Standard library only, except in the process that calls NVML.

Each value is read on its own; one that cannot be read is left out, because a check must not end a start for
want of a file in /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from disttrain.records.collect_provenance import code_hash
from jobs.fabric.description import Adapter, AdapterKind, ConfigurationFile, Fabric, FabricKind
from jobs.fabric.detect import current_process, detect
from jobs.node.preflight.checks import NodeFacts

_NVML_TIMEOUT_S = 20.0
_RATE_BYTES = 16 * 2**20
_BLOCK = 2**20
T = TypeVar("T")


def collect(
    node: int,
    *,
    host: str,
    folders: Sequence[Path],
    missing_gpus: str | None,
    wants_gpus: bool,
    rate_folder: Path | None = None,
    interface: str | None = None,
    root: Path = Path("/"),
) -> NodeFacts:
    """Facts of the node of rank `node`.

    Args:
        host: its name at the scheduler.
        folders: folders whose free space is needed.
        missing_gpus: message of the scheduler's adapter if GPUs are missing.
        wants_gpus: NVML is asked about GPUs, if there is an NVIDIA driver.
        rate_folder: folder in which the rates of storage are measured; None: not measured.
        interface: network interface by which this node reaches the others.
        root: folder of `dev`, `proc` and `sys`.
    """
    began = time.monotonic()
    rates = _or_none(lambda: storage_rates(rate_folder, node)) if rate_folder is not None else None
    gpus, gpu_problems = _gpus(root) if wants_gpus else (None, [])
    fabric = _or_none(lambda: detect(root, current_process())) or Fabric(FabricKind.NONE)
    seconds = time.monotonic() - began
    return NodeFacts(
        node=node,
        host=host,
        agreement=agreement(fabric),
        processors=len(os.sched_getaffinity(0)),
        free_bytes=_free_space(folders),
        missing_gpus=missing_gpus,
        gpus=gpus,
        gpu_problems=gpu_problems,
        memory_lock_bytes=_memory_lock_bytes(),
        rdma=any(each.kind is AdapterKind.VERBS and each.active_port for each in fabric.adapters),
        link_bytes_per_s=link_bytes_per_s(fabric, interface),
        write_bytes_per_s=rates[0] if rates else None,
        read_bytes_per_s=rates[1] if rates else None,
        seconds=seconds,
        time=time.time(),
    )


def _or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # drivers' files and file systems may raise any exception
        return None


def agreement(fabric: Fabric) -> dict[str, str]:
    """Values that must be equal on all nodes of a run."""
    software = fabric.software
    found = {
        "code": _or_none(code_hash),
        "Python": platform.python_version(),
        "machine": platform.machine(),
        "torch": _or_none(lambda: metadata.version("torch")),
        "NCCL": software.nccl_version,
        "NVIDIA driver": software.nvidia_driver,
        "libfabric": software.libfabric_version,
        "aws-ofi-nccl": software.ofi_plugin_version,
        "NCCL configuration files": _text_of(software.nccl_files),
        "fabric": str(fabric.kind),
        "GPUs on the bus": str(len(fabric.gpus)) if fabric.gpus else None,
        **{f"adapter {each.name}": _adapter(each) for each in fabric.adapters},
    }
    return {name: value for name, value in found.items() if value}


def _text_of(files: Sequence[ConfigurationFile]) -> str | None:
    pairs = [f"{name}={value}" for file in files for name, value in file.variables]
    return " ".join(pairs) or None


def _adapter(adapter: Adapter) -> str:
    """State and rate of each port, and the width of the PCIe link, as they are now."""
    ports = [" ".join(filter(None, (port.link_layer, port.state, port.rate))) for port in adapter.ports]
    lanes = adapter.pci.lanes if adapter.pci else None
    return ", ".join([*ports, *([f"PCIe x{lanes}"] if lanes else [])]) or adapter.kind


def link_bytes_per_s(fabric: Fabric, interface: str | None) -> float | None:
    """Sum of the rates of the adapters by which this node reaches the others; None if unknown.

    Without RDMA adapters, that is the rate of `interface`, which virtual interfaces do not have.
    """
    rates = [each.rate_gbit_per_s for each in fabric.compute_adapters]
    if rates:
        return sum(rate or 0.0 for rate in rates) * 1e9 / 8 or None
    for each in fabric.interfaces:
        if each.name == interface and each.speed_mbit_per_s and not each.is_virtual:
            return each.speed_mbit_per_s * 1e6 / 8
    return None


def _free_space(folders: Sequence[Path]) -> dict[str, int]:
    found = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            found[str(folder)] = free_bytes(folder)
    return found


def free_bytes(folder: Path) -> int:
    """Free space of a folder, or of its nearest parent that exists, for a user without privileges."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _memory_lock_bytes() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def storage_rates(folder: Path, node: int) -> tuple[float, float]:
    """Bytes per second of writing and flushing a file of 16 MiB, and of reading it.

    The file is first dropped from the cache of this node, where the file system does that.
    """
    path = folder / f"rate-{node:02d}.bin"
    block = os.urandom(_BLOCK)  # file systems compress zeros
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            began = time.perf_counter()
            for _ in range(_RATE_BYTES // _BLOCK):
                os.write(file, block)
            os.fsync(file)
            write_s = time.perf_counter() - began
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            os.lseek(file, 0, os.SEEK_SET)
            while os.read(file, _BLOCK):
                pass
            read_s = time.perf_counter() - began
        finally:
            os.close(file)
    finally:
        path.unlink(missing_ok=True)
    return _RATE_BYTES / write_s, _RATE_BYTES / read_s


def _gpus(root: Path) -> tuple[int | None, list[dict[str, str]]]:
    """GPUs by NVML and their problems, from a process of its own: a driver may hang. None without one."""
    if not (root / "dev/nvidiactl").exists():
        return None, []
    command = [sys.executable, "-m", "jobs.node.preflight.gpu_health"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVML_TIMEOUT_S, check=True)
        found = json.loads(done.stdout)
        return int(found["gpus"]), list(found["problems"])
    except subprocess.TimeoutExpired:
        message = f"NVML did not answer within {_NVML_TIMEOUT_S:g} s"
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        message = f"NVML cannot be used: {' '.join(str(error).split())}"
    remedy = "run nvidia-smi on the node; reload the driver or reboot the node"
    return None, [{"severity": "warning", "message": message, "remedy": remedy}]
