"""Rates of a node's links by its description: to other nodes, and between its GPUs. Pure functions.

A link is never faster than the PCIe slot of its adapter or GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from jobs.fabric.defects import pcie_gbit_per_s
from jobs.fabric.description import Adapter, Fabric, Gpu, PciDevice
from jobs.fabric.gpus import NvmlReading

_GBIT = 1e9 / 8
_NVLINK_BYTES_PER_S = {6: 20e9, 7: 25e9, 8: 25e9, 9: 25e9, 10: 50e9}
"""Rate of one NVLink in one direction, by the major number of the compute capability."""
_SLOWER_NVLINK_BYTES_PER_S = {(8, 6): 14.0625e9}
"""Rates of single compute capabilities: RTX A6000, A40."""
_REDUCES_IN_SWITCH = (9, 0)
"""Compute capability from which NVSwitch adds up the values itself (NVLink SHARP)."""


@dataclass(frozen=True)
class GpuPath:
    """Links between the GPUs that the ranks of a node use."""

    kind: Literal["nvlink", "pcie"]
    bytes_per_s: float
    """Rate of all links of one GPU in one direction; of several GPUs, the least."""
    reduces_in_switch: bool = False


def link_bytes_per_s(
    fabric: Fabric, adapters: Sequence[Adapter], interface: str | None, ranks: int
) -> float | None:
    """Rate at which the ranks of this node can reach other nodes; None if unknown.

    That is the sum over the fastest of `adapters`: for each rank one, or as many as there are for each GPU;
    at most the sum over the PCIe slots of as many GPUs as ranks. Without adapters it is the rate of
    `interface`, which virtual interfaces do not have.
    """
    if adapters:
        rates = sorted((_adapter_gbit_per_s(each) for each in adapters), reverse=True)
        for_each = max(1, len(rates) // len(fabric.gpus)) if fabric.gpus else 1
        total = sum(rates[: ranks * for_each])
        slots = _gpu_slots_gbit_per_s(fabric.gpus, ranks)
        return min(total, slots or total) * _GBIT or None
    for each in fabric.interfaces:
        if each.name == interface and each.speed_mbit_per_s and not each.is_virtual:
            return _within_slot(each.speed_mbit_per_s / 1000, each.pci) * _GBIT
    return None


def _adapter_gbit_per_s(adapter: Adapter) -> float:
    return _within_slot(adapter.rate_gbit_per_s or 0.0, adapter.pci)


def _within_slot(gbit_per_s: float, pci: PciDevice | None) -> float:
    """A rate, or that of the PCIe slot if it is known and less."""
    slot = pcie_gbit_per_s(pci) if pci else None
    return min(gbit_per_s, slot or gbit_per_s)


def _gpu_slots_gbit_per_s(gpus: Sequence[Gpu], ranks: int) -> float | None:
    """Sum over the slots of the fastest GPUs, one for each rank; None where one is unknown, and for GPUs with
    a path to the processor of their own (NVLink-C2C)."""
    rates = [None if gpu.has_c2c else _gpu_slot_gbit_per_s(gpu) for gpu in gpus]
    known = sorted((rate for rate in rates if rate is not None), reverse=True)
    return sum(known[:ranks]) if len(known) == len(rates) >= ranks else None


def _gpu_slot_gbit_per_s(gpu: Gpu) -> float | None:
    """Rate of a GPU's PCIe link at its highest speed, which idle GPUs lower."""
    return pcie_gbit_per_s(replace(gpu.pci, link_gt_per_s=gpu.pci.link_max_gt_per_s))


def gpu_path(reading: NvmlReading, fabric: Fabric, ranks: int) -> GpuPath | None:
    """The links between the first GPUs of `reading`, one for each rank; None for one rank or unknown rates.

    Where NVLink connects all pairs of GPUs, it is NVLink. Where it leaves a GPU or a group of them apart, all
    traffic between the groups is over PCIe. Other forms, in which only some pairs have NVLink, are not known.
    """
    gpus = reading.gpus[:ranks]
    if ranks < 2 or len(gpus) < ranks:
        return None
    count = _nvlinks_between(reading, gpus)
    if all(count.values()):
        return _nvlink_path(gpus, count)
    return None if _is_connected(gpus, count) else _pcie_path(gpus, fabric)


def _nvlinks_between(reading: NvmlReading, gpus: Sequence[Gpu]) -> dict[frozenset[str], int]:
    """Number of NVLinks of each pair of GPUs, by their PCI addresses."""
    paths = {frozenset((link.first, link.second)): link for link in reading.links}
    pairs = [frozenset((first.pci.address, second.pci.address)) for first, second in combinations(gpus, 2)]
    return {pair: _nvlinks(paths[pair].path) if pair in paths else 0 for pair in pairs}


def _nvlinks(path: str) -> int:
    """The number in a path such as `NV18`; 0 for paths over PCIe."""
    number = path.removeprefix("NV")
    return int(number) if number != path and number.isdecimal() else 0


def _is_connected(gpus: Sequence[Gpu], count: dict[frozenset[str], int]) -> bool:
    """Whether each GPU reaches all others over NVLink, through others if need be."""
    reached = {gpus[0].pci.address}
    while found := {
        place for pair, links in count.items() if links and pair & reached for place in pair - reached
    }:
        reached |= found
    return len(reached) == len(gpus)


def _nvlink_path(gpus: Sequence[Gpu], count: dict[frozenset[str], int]) -> GpuPath | None:
    rates = []
    for gpu in gpus:
        capability = gpu.compute_capability or (0, 0)
        rate = _SLOWER_NVLINK_BYTES_PER_S.get(capability) or _NVLINK_BYTES_PER_S.get(capability[0])
        if rate is None:
            return None
        to_peers = sum(links for pair, links in count.items() if gpu.pci.address in pair)
        rates.append(
            rate * min(to_peers, gpu.nvlinks_active or to_peers)
        )  # a switch has all links for each peer
    through_switch = len(gpus) > 2 and all(
        links == gpu.nvlinks_active
        for gpu in gpus
        for pair, links in count.items()
        if gpu.pci.address in pair
    )
    newest = min(gpu.compute_capability or (0, 0) for gpu in gpus)
    return GpuPath("nvlink", min(rates), through_switch and newest >= _REDUCES_IN_SWITCH)


def _pcie_path(gpus: Sequence[Gpu], fabric: Fabric) -> GpuPath | None:
    places = {gpu.pci.address: gpu for gpu in fabric.gpus}
    rates = [_gpu_slot_gbit_per_s(place) if (place := places.get(gpu.pci.address)) else None for gpu in gpus]
    known = [rate for rate in rates if rate is not None]
    return GpuPath("pcie", min(known) * _GBIT) if len(known) == len(gpus) else None
