"""GPUs on the PCI bus, completed by NVML's reading where there is one."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from jobs.fabric.description import Gpu, GpuLink, PciDevice
from jobs.fabric.gpu_links import NvmlReading
from jobs.fabric.kernel_files import FileTree
from jobs.fabric.pci import pci_path, read_pci_device

_FOLDER = "/sys/bus/pci/devices"
_NVIDIA, _AMD = "0x10de", "0x1002"
_CLASSES = {_NVIDIA: (0x0300, 0x0302), _AMD: (0x0380, 0x1200)}
"""PCI classes of GPUs for computing: VGA and 3D controllers of NVIDIA, display controllers and processing
accelerators of AMD (its VGA controllers include the processor's own graphics)."""
_WITH_C2C = {"0x2342", "0x2345", "0x2348", "0x2941", "0x31c2"}
"""PCI devices GH200 (0x2342, 0x2345, 0x2348), GB200 and GB300, used where NVML was not read."""


def read_gpus(tree: FileTree, nvml: NvmlReading | None) -> tuple[Gpu, ...]:
    """All GPUs of the machine in PCI order, also those that this job may not use.

    Some containers hide the PCI bus; GPUs that only NVML lists follow, without their place.
    """
    by_address = {gpu.pci.address: gpu for gpu in nvml.gpus} if nvml else {}
    places = [pci for name in tree.names(_FOLDER) if (pci := _gpu_place(tree, f"{_FOLDER}/{name}"))]
    known = {pci.address for pci in places}
    places += [gpu.pci for address, gpu in by_address.items() if address not in known]
    return tuple(_gpu(tree, pci, by_address.get(pci.address)) for pci in places)


def _gpu_place(tree: FileTree, folder: str) -> PciDevice | None:
    """The PCI device of `folder` if it is a GPU."""
    kind = tree.integer(f"{folder}/class")
    if kind is None or kind >> 8 not in _CLASSES.get(tree.text(f"{folder}/vendor") or "", ()):
        return None
    return read_pci_device(tree, folder)


def _gpu(tree: FileTree, pci: PciDevice, reading: Gpu | None) -> Gpu:
    """Of `reading` (NVML), else the driver's name and UUID; C2C then follows from the PCI device."""
    model, uuid = _driver_information(tree, pci.address)
    known = reading or Gpu(pci)
    with_c2c = pci.device in _WITH_C2C if known.has_c2c is None else known.has_c2c
    return replace(known, pci=pci, name=known.name or model, uuid=known.uuid or uuid, has_c2c=with_c2c)


def _driver_information(tree: FileTree, address: str) -> tuple[str | None, str | None]:
    """Model and UUID of a GPU as NVIDIA's driver prints them."""
    text = tree.text(f"/proc/driver/nvidia/gpus/{address}/information") or ""
    model = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", text, re.MULTILINE)
    return (model[1] if model else None), (uuid[1] if uuid else None)


def links_between(gpus: tuple[Gpu, ...], nvml: NvmlReading | None) -> tuple[GpuLink, ...]:
    """The link of each pair: NVML's, else the path over PCI, on which NVLink does not show."""
    read = {frozenset((link.first, link.second)): link for link in nvml.links} if nvml else {}
    return tuple(
        read.get(frozenset((first.pci.address, second.pci.address)))
        or GpuLink(first.pci.address, second.pci.address, pci_path(first.pci, second.pci))
        for first, second in combinations(gpus, 2)
    )
