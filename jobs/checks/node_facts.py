"""Facts of this node for the pre-flight, with the rates of its links by their description.

Each value is read on its own; one that cannot be read is left out, because a check must not end a start for
want of a file in /proc.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_json import asks_for_gpus, ranks_per_node
from jobs.checks.gpu_health import NodeGpus, has_driver, node_gpus
from jobs.checks.rank_python import RankPython
from jobs.fabric.choose_adapters import expected_adapters
from jobs.fabric.defects import defects, missing_plugin, no_active_adapter, pcie_gbit_per_s
from jobs.fabric.description import Adapter, AdapterKind, ConfigurationFile, Fabric, Gpu, PciDevice
from jobs.fabric.gpus import NvmlReading
from jobs.fabric.settings import node_settings

_BLOCK = 2**20
_RATE_PARTS = (1, 3, 12)
"""Parts of the file whose writing is timed, in blocks: each is flushed on its own."""
_NO_PART_AFTER_S = 0.5
"""A part begins at most this long after the first one: at 10 MB/s the file is whole within 2 s."""
_NODES_THAT_WRITE = 8
"""Nodes that measure storage. Hundreds that flush at once would measure each other."""
_GBIT = 1e9 / 8
_NVLINK_BYTES_PER_S = {6: 20e9, 7: 25e9, 8: 25e9, 9: 25e9, 10: 50e9}
"""Rate of one NVLink in one direction, by the major number of the compute capability."""
_SLOWER_NVLINK_BYTES_PER_S = {(8, 6): 14.0625e9}
"""Rates of single compute capabilities: RTX A6000, A40."""
_REDUCES_IN_SWITCH = (9, 0)
"""Compute capability from which NVSwitch adds up the values itself (NVLink SHARP)."""
T = TypeVar("T")


@dataclass(frozen=True)
class NodeFacts:
    """Facts that one node wrote."""

    node: int
    """Node rank."""
    host: str
    time: float
    """Time of writing by this node's clock, in seconds since the epoch."""
    agreement: Mapping[str, str]
    """Values that must be equal on all nodes."""
    processors: int
    """Number of processors that this job may use."""
    free_bytes: Mapping[str, int]
    """Free space by folder."""
    ranks: int = 1
    """Ranks of this node."""
    far_from_gpus: Sequence[int] = ()
    """Local ranks for which the job has no processor near their GPU; none without a scheduler."""
    python_problem: str | None = None
    """Why the Python of the ranks cannot start them."""
    missing_gpus: str | None = None
    """Message if the scheduler gave fewer GPUs than the run requested."""
    gpus: int | None = None
    """GPUs by NVML, 0 without a driver; None if NVML gave no answer, and for runs without GPUs."""
    gpu_problems: Sequence[Mapping[str, Any]] = ()
    """`severity`, `message` and `remedy` of each problem of a GPU."""
    nvlink: Sequence[Any] | None = None
    """Rate of the NVLinks of one of its ranks' GPUs, and whether a switch adds up the values (`nvlink`)."""
    memory_lock_bytes: int | None = None
    """Limit of locked memory; None without a limit."""
    rdma: bool = False
    """Whether NCCL of this run may use adapters that register memory (InfiniBand, RoCE, EFA)."""
    link_bytes_per_s: float | None = None
    """Rate at which the ranks of the node can reach the others; None if unknown."""
    tcp: bool = False
    """Whether the ranks reach the others over TCP: gloo, or NCCL without an adapter."""
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    seconds: float = 0.0
    """Duration of collecting these facts."""
    defects: Sequence[str] = ()
    """Defects of its network by `jobs.fabric.defects`; none for runs over TCP."""

    @property
    def agreement_hash(self) -> str:
        """Equal for nodes whose `agreement` is equal: 12 hex digits of SHA-256."""
        text = json.dumps(dict(self.agreement), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def collect(
    node: int,
    host: str,
    config: Mapping[str, Any],
    fabric: Fabric,
    *,
    environ: Mapping[str, str],
    interface: str | None,
    agreed: Mapping[str, str],
    folders: Sequence[Path],
    rate_folder: Path | None,
    missing_gpus: str | None,
    is_alone: bool,
    python: RankPython,
) -> NodeFacts:
    """Facts of the node of rank `node`, whose network `fabric` describes.

    Args:
        config: of the run.
        environ: environment of the ranks.
        interface: network interface by which this node reaches the others.
        agreed: further values that should be equal on all nodes.
        folders: folders whose free space is needed.
        rate_folder: folder in which the first nodes measure the rates of storage; None: not measured.
        missing_gpus: message of the scheduler's adapter if GPUs are missing.
        is_alone: whether a scheduler has given the job its processors.
        python: that of the ranks.
    """
    began = time.monotonic()
    ranks, wants_gpus = ranks_per_node(config), asks_for_gpus(config["resources"]["device"])
    gpus = node_gpus() if wants_gpus else NodeGpus(None)
    rates = None
    if rate_folder is not None and node < _NODES_THAT_WRITE:
        rates = _or_none(lambda: storage_rates(rate_folder, node))
    settings = {name: each.value for name, each in node_settings(fabric, environ).items()}
    uses_nccl = wants_gpus and has_driver()
    adapters = expected_adapters(fabric, settings) if uses_nccl else ()
    shared = {name: value for name, value in agreed.items() if value}
    return NodeFacts(
        node=node,
        host=host,
        agreement=agreement(fabric, python, wants_gpus=wants_gpus) | shared,
        python_problem=python.problem,
        processors=len(os.sched_getaffinity(0)),
        free_bytes=_free_space(folders),
        missing_gpus=missing_gpus,
        gpus=gpus.count,
        gpu_problems=gpus.problems,
        nvlink=nvlink(gpus.reading, ranks),
        **_network_facts(fabric, adapters, settings, uses_nccl=uses_nccl),
        link_bytes_per_s=link_bytes_per_s(fabric, adapters, interface, ranks),
        far_from_gpus=ranks_far_from_gpus(fabric, gpus.reading.gpus, ranks) if is_alone else (),
        write_bytes_per_s=rates[0] if rates else None,
        read_bytes_per_s=rates[1] if rates else None,
        ranks=ranks,
        seconds=time.monotonic() - began,
        time=time.time(),
    )


def link_bytes_per_s(
    fabric: Fabric, adapters: Sequence[Adapter], interface: str | None, ranks: int
) -> float | None:
    """Rate at which the ranks of this node can reach other nodes; None if unknown.

    That is the sum over the fastest of `adapters`: for each rank one, or as many as there are for each GPU;
    at most the sum over the PCIe slots of as many GPUs as ranks. Without adapters it is the rate of
    `interface`, which virtual interfaces do not have.
    """
    if adapters:
        rates = sorted(
            (_within_slot(each.rate_gbit_per_s or 0.0, each.pci) for each in adapters), reverse=True
        )
        for_each = max(1, len(rates) // len(fabric.gpus)) if fabric.gpus else 1
        total = sum(rates[: ranks * for_each])
        slots = _gpu_slots_gbit_per_s(fabric.gpus, ranks)
        return min(total, slots or total) * _GBIT or None
    for each in fabric.interfaces:
        if each.name == interface and each.speed_mbit_per_s and not each.is_virtual:
            return _within_slot(each.speed_mbit_per_s / 1000, each.pci) * _GBIT
    return None


def _within_slot(gbit_per_s: float, pci: PciDevice | None) -> float:
    """A rate, or that of the PCIe slot if it is known and less."""
    slot = pcie_gbit_per_s(pci) if pci else None
    return min(gbit_per_s, slot or gbit_per_s)


def _gpu_slots_gbit_per_s(gpus: Sequence[Gpu], ranks: int) -> float | None:
    """Sum over the slots of the fastest GPUs, one for each rank, at the highest speed, which idle ones lower.

    None where one is unknown, and for GPUs with a path to the processor of their own (NVLink-C2C).
    """
    slots = [replace(gpu.pci, link_gt_per_s=gpu.pci.link_max_gt_per_s) for gpu in gpus if not gpu.has_c2c]
    rates = [rate for slot in slots if (rate := pcie_gbit_per_s(slot)) is not None]
    return sum(sorted(rates, reverse=True)[:ranks]) if len(rates) == len(gpus) >= ranks else None


def nvlink(reading: NvmlReading, ranks: int) -> tuple[float, bool] | None:
    """NVLink between the first GPUs of `reading`, one for each rank: the rate of all links of one GPU in one
    direction, and whether a switch adds up the values.

    None for one rank, unless it connects all pairs of GPUs, and for unknown rates.
    """
    gpus = reading.gpus[:ranks]
    if ranks < 2 or len(gpus) < ranks:
        return None
    between: dict[tuple[str, str], int] = {}
    for link in reading.links:
        number = link.path.removeprefix("NV")
        if number.isdecimal() and number != link.path:
            between[link.first, link.second] = between[link.second, link.first] = int(number)
    rates, through_switch = [], ranks > 2
    for gpu in gpus:
        to_peers = [between.get((gpu.pci.address, peer.pci.address), 0) for peer in gpus if peer is not gpu]
        capability = gpu.compute_capability or (0, 0)
        rate = _SLOWER_NVLINK_BYTES_PER_S.get(capability) or _NVLINK_BYTES_PER_S.get(capability[0])
        if rate is None or not all(to_peers):
            return None
        # a switch has all links for each peer
        rates.append(rate * min(sum(to_peers), gpu.nvlinks_active or sum(to_peers)))
        through_switch &= set(to_peers) == {gpu.nvlinks_active} and capability >= _REDUCES_IN_SWITCH
    return min(rates), through_switch


def _or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # drivers' files and file systems may raise any exception
        return None


def agreement(fabric: Fabric, python: RankPython, *, wants_gpus: bool) -> dict[str, str]:
    """Values that should be equal on all nodes of a run: those of NCCL and its network only with GPUs."""
    software = fabric.software
    found = {
        "code": _or_none(code_hash),
        "Python": python.version,
        "machine": platform.machine(),
        "torch": python.packages.get("torch"),
    }
    with_gpus = {
        "NCCL": software.nccl_version,
        "NVIDIA driver": software.nvidia_driver,
        "libfabric": software.libfabric_version,
        "aws-ofi-nccl": software.ofi_plugin_version,
        "NCCL configuration files": _text_of(software.nccl_files),
        "fabric": str(fabric.kind),
        "adapters": _adapters(fabric.compute_adapters),
    }
    return {name: value for name, value in (found | (with_gpus if wants_gpus else {})).items() if value}


def _text_of(files: Sequence[ConfigurationFile]) -> str | None:
    pairs = [f"{name}={value}" for file in files for name, value in file.variables]
    return " ".join(pairs) or None


def _adapters(adapters: Sequence[Adapter]) -> str:
    """Number of adapters of each kind. Their names are left out: those of virtual functions differ."""
    return " and ".join(
        f"{count} x {text}" for text, count in sorted(Counter(map(_adapter, adapters)).items())
    )


def _adapter(adapter: Adapter) -> str:
    """State and rate of each port, and the width of the PCIe link, as they are now."""
    ports = [" ".join(filter(None, (port.link_layer, port.state, port.rate))) for port in adapter.ports]
    lanes = adapter.pci.lanes if adapter.pci else None
    return ", ".join([*ports, *([f"PCIe x{lanes}"] if lanes else [])]) or adapter.kind


def _network_facts(
    fabric: Fabric, adapters: Sequence[Adapter], settings: Mapping[str, str], *, uses_nccl: bool
) -> dict[str, Any]:
    """Facts of the adapters that NCCL uses. Without any, the one defect is that all of them are down."""
    # `node_checks.BETWEEN_NODES` judges the limit of locked memory
    unlimited = replace(fabric, software=replace(fabric.software, memory_lock_bytes=None))
    kinds = {each.kind for each in adapters}
    without = no_active_adapter(fabric, settings) if uses_nccl else ()
    lacks_plugin = any(missing_plugin(fabric.software, settings))
    return {
        "memory_lock_bytes": fabric.software.memory_lock_bytes,
        "rdma": AdapterKind.VERBS in kinds or (AdapterKind.EFA in kinds and not lacks_plugin),
        "tcp": not adapters,
        "defects": defects(unlimited, settings) if adapters else tuple(without),
    }


def _free_space(folders: Sequence[Path]) -> dict[str, int]:
    """Free space by folder, or of its nearest parent that exists, for a user without privileges."""
    free = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            found = os.statvfs(next(path for path in (folder, *folder.parents) if path.exists()))
            if found.f_blocks:  # FUSE file systems without statfs report zeros
                free[str(folder)] = found.f_bavail * found.f_frsize
    return free


def ranks_far_from_gpus(fabric: Fabric, gpus: Sequence[Gpu], ranks: int) -> list[int]:
    """Local ranks for which the job has no processor near their GPU; `gpus` are those of the job."""
    near = {gpu.pci.address: gpu.pci.cores for gpu in fabric.gpus}
    usable = os.sched_getaffinity(0)
    cores = [near.get(gpu.pci.address, ()) for gpu in gpus[:ranks]]
    return [rank for rank, own in enumerate(cores) if own and usable.isdisjoint(own)]


def storage_rates(folder: Path, node: int) -> tuple[float, float]:
    """Bytes per second of writing and flushing a file of 16 MiB, and of reading it.

    Slow storage gets a smaller file, so that the measurement ends within seconds: each part of the file is
    flushed on its own, and none is begun late. Before it is read, the file is dropped from the cache of this
    node, where the file system does that.
    """
    path = folder / f"rate-{node:02d}.bin"
    block = os.urandom(_BLOCK)  # file systems compress zeros
    written = 0
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            began = time.perf_counter()
            for blocks in _RATE_PARTS:
                for _ in range(blocks):
                    os.write(file, block)
                os.fsync(file)
                written += blocks * _BLOCK
                write_s = time.perf_counter() - began
                if write_s > _NO_PART_AFTER_S:
                    break
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
    return written / write_s, written / read_s
