"""Typed description of a node's adapters, interfaces, GPUs and communication libraries.

`jobs.fabric.detect` makes it from the kernel's files. Values that could not be read are None or empty. Paths
are those of the node, without the root that a detection was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

ENOUGH_LOCKED_BYTES = 2**30
"""Limit of locked memory below which RDMA adapters may fail to register the buffers of NCCL."""


class FabricKind(StrEnum):
    """Network between nodes, by the adapters chosen for computing; without any, by the interfaces."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    SLINGSHOT = "slingshot"
    ETHERNET = "ethernet"
    NONE = "none"
    """No interface that is up, apart from loopback and virtual ones."""


class AdapterKind(StrEnum):
    """Driver family of an adapter."""

    VERBS = "verbs"
    """InfiniBand or RoCE, by the link layer of its ports: NCCL's own transport IB."""
    EFA = "efa"
    """Elastic Fabric Adapter of AWS: reached through libfabric."""
    CXI = "cxi"
    """Slingshot (Cassini): reached through libfabric."""


@dataclass(frozen=True)
class Gid:
    """One address of a RoCE port; its index is the value of `NCCL_IB_GID_INDEX`."""

    index: int
    address: str
    type: str
    """`IB/RoCE v1` or `RoCE v2`."""
    interface: str | None


@dataclass(frozen=True)
class Port:
    """One port of an adapter."""

    number: int
    link_layer: str | None
    """`InfiniBand`, `Ethernet`, or `Unspecified` (EFA)."""
    state: str | None
    """`ACTIVE`, `INIT`, `DOWN`, ... as the kernel names it, without its number."""
    physical_state: str | None
    """`LinkUp`, `Polling`, `Disabled`, ..."""
    rate_gbit_per_s: float | None
    """Signalling rate of the link as it is now."""
    rate: str | None
    """The driver's text, for example `400 Gb/sec (4X NDR)`."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces on this port: `ib0` (IPoIB), or the Ethernet interface of RoCE."""
    gids: tuple[Gid, ...] = ()
    """Of Ethernet ports only."""
    link_downed: int | None = None
    """Times that the link went down since the driver was loaded."""

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def lanes(self) -> int | None:
        """Width of the link, of the `4X` in `rate`."""
        width = (self.rate or "").partition("(")[2].partition("X")[0]
        return int(width) if width.isdecimal() else None


@dataclass(frozen=True)
class PciDevice:
    """Place of a device on the PCI bus."""

    address: str
    """For example `0000:1a:00.0`."""
    path: tuple[str, ...] = ()
    """The host bridge and the PCI addresses from it down to the device."""
    vendor: str | None = None
    """For example `0x15b3`."""
    device: str | None = None
    numa_node: int | None = None
    """None also where the kernel reports -1."""
    cores: tuple[int, ...] = ()
    """Processors nearest to the device (`local_cpulist`)."""
    link_gt_per_s: float | None = None
    """Rate of one PCIe lane as it is now, in GT/s. Idle GPUs lower it."""
    link_max_gt_per_s: float | None = None
    """The highest rate that both ends of the link support."""
    lanes: int | None = None
    lanes_max: int | None = None


@dataclass(frozen=True)
class Adapter:
    """A network adapter that NCCL can use without the kernel's TCP stack: HCA, EFA or CXI."""

    name: str
    kind: AdapterKind
    driver: str | None
    firmware: str | None
    pci: PciDevice | None
    ports: tuple[Port, ...]
    evidence: str
    """Path of its folder, for example `/sys/class/infiniband/mlx5_0`."""
    board: str | None = None
    """Id of the board, `MT_0000000838`."""
    for_compute: bool = False
    """Whether it was chosen for the traffic of training."""
    reason: str = ""
    """Reason of the choice, one clause without a full stop."""

    @property
    def active_port(self) -> Port | None:
        """The fastest active port."""
        active = [port for port in self.ports if port.is_active]
        return max(active, key=lambda port: port.rate_gbit_per_s or 0, default=None)

    @property
    def main_port(self) -> Port | None:
        """The fastest active port, else the first one."""
        return self.active_port or next(iter(self.ports), None)

    @property
    def rate_gbit_per_s(self) -> float | None:
        """Rate of the fastest active port; None without one."""
        return self.active_port.rate_gbit_per_s if self.active_port else None


@dataclass(frozen=True)
class Interface:
    """A network interface of the kernel, other than loopback."""

    name: str
    state: str | None
    """`up`, `down`, `unknown`, ... (`operstate`)."""
    hardware_type: int | None
    """`ARPHRD_*` of the kernel: 1 Ethernet, 32 IPoIB."""
    speed_mbit_per_s: int | None
    """None where the driver does not report it, as for most virtual interfaces."""
    mtu_bytes: int | None
    driver: str | None
    """None of virtual interfaces."""
    pci: PciDevice | None
    is_default_route: bool = False
    master: str | None = None
    """The bond or bridge that this interface belongs to."""
    members: tuple[str, ...] = ()
    """Of a bond: its interfaces."""
    networks: tuple[str, ...] = ()
    """IPv4 networks that it is connected to, for example `10.1.0.0/16`."""

    @property
    def is_up(self) -> bool:
        return self.state in ("up", "unknown")

    @property
    def is_virtual(self) -> bool:
        """Whether no device is behind it: bridges, veth pairs, tunnels. A bond of devices is not virtual."""
        return self.pci is None and self.driver is None and not self.members

    @property
    def is_ipoib(self) -> bool:
        return self.hardware_type == 32

    @property
    def evidence(self) -> str:
        return f"/sys/class/net/{self.name}"


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus, whether or not this job may use it."""

    pci: PciDevice
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    has_c2c: bool | None = None
    """Whether NVLink-C2C connects it to the processor (GH200, GB200)."""
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    """Links that the GPU has, active or not."""
    is_behind_nvswitch: bool | None = None
    """Whether an active link ends at a switch, as on HGX boards: all its links then do."""


@dataclass(frozen=True)
class GpuLink:
    """Connection of two GPUs of the node, by their PCI addresses."""

    first: str
    second: str
    path: str
    """In the words of `nvidia-smi topo -m`: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""
    is_p2p: bool | None = None
    """Whether one may read the other's memory; None where NVML was not there."""

    @property
    def is_nvlink(self) -> bool:
        return self.path.startswith("NV")


@dataclass(frozen=True)
class Plugin:
    """A shared library that NCCL loads by name."""

    kind: str
    """`net`, `tuner`, `profiler`, `env`."""
    path: str
    is_reachable: bool
    """Whether the dynamic linker finds it (`LD_LIBRARY_PATH`, its configuration, default folders)."""
    names: tuple[str, ...] = ()
    """All names of the file in such folders, as `NCCL_NET_PLUGIN` may choose each of several links."""


@dataclass(frozen=True)
class ConfigurationFile:
    """A file of variables that NCCL reads and that no log of the environment shows."""

    path: str
    variables: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, str]:
        return dict(self.variables)


@dataclass(frozen=True)
class Software:
    """Libraries, kernel modules, and limits that communication depends on."""

    nccl_version: str | None = None
    """For example `2.27.5`."""
    nccl_evidence: str | None = None
    """Library or Python package that the version is from."""
    nccl_plugins: tuple[Plugin, ...] = ()
    nccl_files: tuple[ConfigurationFile, ...] = ()
    """In the order of NCCL: the user's file first, then the machine's. Earlier values win."""
    ofi_plugin_version: str | None = None
    """Of aws-ofi-nccl."""
    libfabric_version: str | None = None
    libfabric_evidence: str | None = None
    nvidia_driver: str | None = None
    is_open_driver: bool | None = None
    """Whether NVIDIA's kernel module is the open one, which DMA-BUF needs."""
    kernel: str | None = None
    has_peermem: bool | None = None
    """Module `nvidia_peermem`: GPUDirect RDMA without DMA-BUF."""
    has_gdrcopy: bool | None = None
    """Device `/dev/gdrdrv`."""
    has_verbs_devices: bool | None = None
    """Whether `/dev/infiniband` has a device for processes without root."""
    memory_lock_bytes: int | None = None
    """Limit of locked memory of this process; None if it is unlimited or unknown, see `memory_lock`."""
    memory_lock: str | None = None
    """The limit that has effect (`software.effective_limit`): `unlimited`, or bytes."""
    shared_memory_bytes: int | None = None
    """Size of `/dev/shm`; None where it was not read."""
    has_libraries: bool = True
    """False where the libraries are those of an image that was not examined."""

    def of_image(self, nccl_version: str | None) -> Software:
        """This node's for ranks in a container: its kernel, with unknown libraries but for NCCL's version."""
        return replace(
            self,
            has_libraries=False,
            nccl_version=nccl_version,
            nccl_evidence=None,
            nccl_plugins=(),
            nccl_files=(),
            ofi_plugin_version=None,
            libfabric_version=None,
            libfabric_evidence=None,
        )


@dataclass(frozen=True)
class Fabric:
    """Description of one node's network."""

    kind: FabricKind
    adapters: tuple[Adapter, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    software: Software = field(default_factory=Software)
    product: str | None = None
    """Vendor and product by DMI, for example `Amazon EC2 p5.48xlarge`."""
    host: str | None = None

    @property
    def compute_adapters(self) -> tuple[Adapter, ...]:
        return tuple(each for each in self.adapters if each.for_compute)

    @property
    def excluded_adapters(self) -> tuple[Adapter, ...]:
        return tuple(each for each in self.adapters if not each.for_compute)

    @property
    def default_interface(self) -> Interface | None:
        """The interface of the default route."""
        return next((each for each in self.interfaces if each.is_default_route), None)

    @property
    def has_c2c(self) -> bool:
        return any(gpu.has_c2c for gpu in self.gpus)

    @property
    def features(self) -> set[str]:
        """Features that entries of `variables.json` depend on: the kind, `c2c` (NVLink-C2C), `nvlink`, and
        `plugin` (a network plugin that NCCL finds)."""
        has_nvlink = any(link.is_nvlink for link in self.gpu_links)
        has_plugin = any(each.kind == "net" and each.is_reachable for each in self.software.nccl_plugins)
        present = {str(self.kind): True, "c2c": self.has_c2c, "nvlink": has_nvlink, "plugin": has_plugin}
        return {name for name, is_present in present.items() if is_present}
