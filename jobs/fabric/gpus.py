"""GPUs on the PCI bus, and by NVML with the links between them: the only module of this package that calls a
driver's library.

`nvml.json` in a copied file tree holds the same reading (`NvmlReading.as_json`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from jobs.fabric.description import Gpu, GpuLink, PciDevice
from jobs.fabric.kernel_files import FileTree, pci_path, read_pci_device

_FOLDER = "/sys/bus/pci/devices"
_CLASSES = {"0x10de": (0x0300, 0x0302), "0x1002": (0x0380, 0x1200)}
"""PCI classes of GPUs for computing: VGA and 3D controllers of NVIDIA, display controllers and processing
accelerators of AMD (its VGA controllers include the processor's own graphics)."""
_WITH_C2C = {"0x2342", "0x2345", "0x2348", "0x2941", "0x31c2"}
"""PCI devices GH200 (0x2342, 0x2345, 0x2348), GB200 and GB300, used where NVML was not read."""
_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which is a tuple in some releases of the binding
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""`NVML_TOPOLOGY_*`: internal, single switch, multiple switches, host bridge, node, system."""
_GPU, _SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*
_MOST_NVLINKS = 36
"""`NVML_NVLINK_MAX_LINKS` of the newest drivers; older ones refuse the numbers above theirs."""


@dataclass(frozen=True)
class NvmlReading:
    """All GPUs that NVML lists, and each pair's link."""

    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    """Of their places on the PCI bus, only the addresses are known."""
    links: tuple[GpuLink, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The content of `nvml.json`: of each GPU `pci_address`, and its other fields without `pci`."""
        document = dataclasses.asdict(self)
        for gpu in document["gpus"]:
            gpu["pci_address"] = gpu.pop("pci")["address"]
        return document

    @classmethod
    def from_json(cls, data: Any) -> NvmlReading | None:
        """The reading in a parsed `nvml.json`; None if it has another form."""
        try:
            return cls(
                driver=data.get("driver"),
                gpus=tuple(_gpu_of_json(**gpu) for gpu in data.get("gpus", [])),
                links=tuple(GpuLink(**link) for link in data.get("links", [])),
            )
        except (TypeError, AttributeError, ValueError):
            return None


def _gpu_of_json(pci_address: str, compute_capability: Any = None, **fields: Any) -> Gpu:
    return Gpu(_place(pci_address), compute_capability=_pair(compute_capability), **fields)


def _place(address: str) -> PciDevice:
    return PciDevice(address, (address,))


def _pair(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    major, minor = value
    return int(major), int(minor)


def read_gpus(tree: FileTree, nvml: NvmlReading | None) -> tuple[Gpu, ...]:
    """All GPUs of the machine in PCI order, completed by NVML, also those that this job may not use.

    Some containers hide the PCI bus; GPUs that only NVML lists follow, without their place.
    """
    by_address = {gpu.pci.address: gpu for gpu in nvml.gpus} if nvml else {}
    folders = [f"{_FOLDER}/{name}" for name in tree.names(_FOLDER)]
    places = [pci for path in folders if _is_gpu(tree, path) and (pci := read_pci_device(tree, path))]
    known = {pci.address for pci in places}
    places += [gpu.pci for address, gpu in by_address.items() if address not in known]
    return tuple(_completed(tree, by_address.get(pci.address, Gpu(pci)), pci) for pci in places)


def _is_gpu(tree: FileTree, folder: str) -> bool:
    kind = tree.integer(f"{folder}/class") or 0
    return kind >> 8 in _CLASSES.get(tree.text(f"{folder}/vendor") or "", ())


def _completed(tree: FileTree, gpu: Gpu, pci: PciDevice) -> Gpu:
    """A GPU with its place, and without NVML: name and UUID of the driver, C2C of the PCI device."""
    information = f"/proc/driver/nvidia/gpus/{pci.address}/information"
    return replace(
        gpu,
        pci=pci,
        name=gpu.name or tree.match(r"^Model:\s*(\S.*?)\s*$", information)[0],
        uuid=gpu.uuid or tree.match(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", information)[0],
        has_c2c=pci.device in _WITH_C2C if gpu.has_c2c is None else gpu.has_c2c,
    )


def links_between(gpus: tuple[Gpu, ...], nvml: NvmlReading | None) -> tuple[GpuLink, ...]:
    """The link of each pair: NVML's, else the path over PCI, on which NVLink does not show."""
    read = {frozenset((link.first, link.second)): link for link in nvml.links} if nvml else {}
    return tuple(
        read.get(frozenset((first.pci.address, second.pci.address)))
        or GpuLink(first.pci.address, second.pci.address, pci_path(first.pci, second.pci))
        for first, second in combinations(gpus, 2)
    )


def read_nvml() -> NvmlReading | None:
    """The reading on this machine; None without a driver. GPUs that NVML refuses, as it does those that the
    cgroup of the job hides, and GPUs that do not answer are left out."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no binding, no library, no driver
        return None
    try:
        numbers = range(pynvml.nvmlDeviceGetCount())
        handles = [_call(pynvml, "nvmlDeviceGetHandleByIndex", number) for number in numbers]
        found = [(handle, *gpu) for handle in handles if handle is not None and (gpu := _gpu(pynvml, handle))]
        links = [_link(pynvml, *first, *second) for first, second in combinations(found, 2)]
        driver = _call(pynvml, "nvmlSystemGetDriverVersion")
        return NvmlReading(driver, tuple(gpu for _, gpu, _ in found), tuple(links))
    except Exception:
        return None
    finally:
        _call(pynvml, "nvmlShutdown")


def _call(api: Any, name: str, *arguments: Any) -> Any:
    """The answer of one function; None where the binding lacks it, or the driver or the GPU refuses it."""
    try:
        return getattr(api, name)(*arguments)
    except Exception:  # the binding raises more than NVMLError, for instance on a name that is not UTF-8
        return None


def normal_address(bus_id: str | bytes) -> str:
    """NVML's `00000000:1A:00.0` in the spelling of sysfs, `0000:1a:00.0`."""
    text = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _gpu(api: Any, handle: Any) -> tuple[Gpu, Counter[str]] | None:
    """A GPU, and its active NVLinks by the address of the GPU at their other end, or `switch`; None for a GPU
    that does not answer."""
    pci = _call(api, "nvmlDeviceGetPciInfo", handle)
    if pci is None:
        return None
    states = [_call(api, "nvmlDeviceGetNvLinkState", handle, number) for number in range(_MOST_NVLINKS)]
    peers = Counter(_peer(api, handle, number) for number, state in enumerate(states) if state)
    links = sum(state is not None for state in states)
    c2c = _call(api, "nvmlDeviceGetC2cModeInfoV", handle)
    memory = _call(api, "nvmlDeviceGetMemoryInfo", handle)
    gpu = Gpu(
        _place(normal_address(pci.busId)),
        name=_call(api, "nvmlDeviceGetName", handle),
        uuid=_call(api, "nvmlDeviceGetUUID", handle),
        memory_bytes=int(memory.total) if memory is not None else None,
        compute_capability=_pair(_call(api, "nvmlDeviceGetCudaComputeCapability", handle)),
        has_c2c=bool(c2c.isC2cEnabled) if c2c is not None else None,
        nvlinks_active=peers.total() if links else None,
        nvlinks=links or None,
        is_behind_nvswitch="switch" in peers if links else None,
    )
    return gpu, peers


def _peer(api: Any, handle: Any, number: int) -> str:
    kind = _call(api, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
    peer = _call(api, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
    if kind == _SWITCH:
        return "switch"
    return normal_address(peer.busId) if kind in (_GPU, None) and peer is not None else "unknown"


def _link(
    api: Any, handle: Any, gpu: Gpu, peers: Counter[str], other_handle: Any, other: Gpu, others: Counter[str]
) -> GpuLink:
    """The link of two GPUs in the words of `nvidia-smi topo -m`; `SYS` if NVML refuses to name it.

    Through NVSwitches, the lesser number of links into them counts.
    """
    nvlinks = peers[other.pci.address] or min(peers["switch"], others["switch"])
    level = _call(api, "nvmlDeviceGetTopologyCommonAncestor", handle, other_handle)
    status = _call(api, "nvmlDeviceGetP2PStatus", handle, other_handle, _READ)
    return GpuLink(
        gpu.pci.address,
        other.pci.address,
        f"NV{nvlinks}" if nvlinks else _PATHS.get(level, "SYS"),
        bool(status == api.NVML_P2P_STATUS_OK) if status is not None else None,
    )
