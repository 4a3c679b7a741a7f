"""GPUs and the links between them by NVML: the only module of this package that calls a driver's library.

`nvml.json` in a copied file tree holds the same reading (`NvmlReading.as_json`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from jobs.fabric.description import Gpu, GpuLink, PciDevice

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
        found = dataclasses.asdict(self)
        for gpu in found["gpus"]:
            gpu["pci_address"] = gpu.pop("pci")["address"]
        return found

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


def read_nvml() -> NvmlReading | None:
    """The reading on this machine; None without a driver. GPUs whose handle is refused are left out."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no binding, no library, no driver
        return None
    try:
        numbers = range(pynvml.nvmlDeviceGetCount())
        # NVML lists GPUs that the cgroup of the job hides, and refuses their handles
        handles = [_call(pynvml, "nvmlDeviceGetHandleByIndex", number) for number in numbers]
        found = [
            (handle, gpu)
            for handle in handles
            if handle is not None and (gpu := _gpu(pynvml, handle)) is not None
        ]
        return NvmlReading(
            driver=_call(pynvml, "nvmlSystemGetDriverVersion"),
            gpus=tuple(gpu for _, gpu in found),
            links=tuple(
                GpuLink(
                    gpu.pci.address,
                    other.pci.address,
                    _path(pynvml, handle, other_handle),
                    _is_p2p(pynvml, handle, other_handle),
                )
                for index, (handle, gpu) in enumerate(found)
                for other_handle, other in found[index + 1 :]
            ),
        )
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


def _address(api: Any, handle: Any) -> str | None:
    pci = _call(api, "nvmlDeviceGetPciInfo", handle)
    return normal_address(pci.busId) if pci is not None else None


def _gpu(api: Any, handle: Any) -> Gpu | None:
    """None for a GPU that does not answer."""
    address = _address(api, handle)
    if address is None:
        return None
    links = _link_states(api, handle)
    c2c = _call(api, "nvmlDeviceGetC2cModeInfoV", handle)
    memory = _call(api, "nvmlDeviceGetMemoryInfo", handle)
    return Gpu(
        _place(address),
        name=_call(api, "nvmlDeviceGetName", handle),
        uuid=_call(api, "nvmlDeviceGetUUID", handle),
        memory_bytes=int(memory.total) if memory is not None else None,
        compute_capability=_pair(_call(api, "nvmlDeviceGetCudaComputeCapability", handle)),
        has_c2c=bool(c2c.isC2cEnabled) if c2c is not None else None,
        nvlinks_active=sum(links) if links else None,
        nvlinks=len(links) or None,
        is_behind_nvswitch=_peers(api, handle, None)[1] > 0 if links else None,
    )


def _link_states(api: Any, handle: Any) -> list[bool]:
    """Whether each NVLink of a GPU is active; empty for GPUs without NVLink."""
    states = [_call(api, "nvmlDeviceGetNvLinkState", handle, number) for number in range(_MOST_NVLINKS)]
    return [bool(state) for state in states if state is not None]


def _is_p2p(api: Any, first: Any, second: Any) -> bool | None:
    status = _call(api, "nvmlDeviceGetP2PStatus", first, second, _READ)
    return bool(status == api.NVML_P2P_STATUS_OK) if status is not None else None


def _path(api: Any, first: Any, second: Any) -> str:
    """Path between two GPUs in the words of `nvidia-smi topo -m`; `SYS` if NVML refuses to name it."""
    if links := _nvlinks_between(api, first, second):
        return f"NV{links}"
    level = _call(api, "nvmlDeviceGetTopologyCommonAncestor", first, second)
    return _PATHS.get(level, "SYS")


def _nvlinks_between(api: Any, first: Any, second: Any) -> int:
    """Active NVLinks from one GPU to another; through NVSwitches, the lesser number of links into them."""
    direct, into_switch = _peers(api, first, _address(api, second))
    return direct or min(into_switch, _peers(api, second, None)[1])


def _peers(api: Any, handle: Any, address: str | None) -> tuple[int, int]:
    """Active links of a GPU that end at the GPU `address`, and those that end at a switch."""
    direct = into_switch = 0
    for number in range(_MOST_NVLINKS):
        if not _call(api, "nvmlDeviceGetNvLinkState", handle, number):
            continue
        kind = _call(api, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
        peer = _call(api, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
        into_switch += kind == _SWITCH
        direct += kind in (_GPU, None) and peer is not None and normal_address(peer.busId) == address
    return direct, into_switch
