"""From a file-system root to the description of a node's fabric: adapters, interfaces, GPUs, libraries.

No root privileges, no torch. Sources of the formats: `Documentation/ABI/stable/sysfs-class-infiniband` and
`efa_verbs.c` of Linux, and `cass_sysfs.c` of the CXI driver (`speed` in Mbit/s, `link` 0 or 1).
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.fabric.choose_adapters import choose_adapters
from jobs.fabric.description import Adapter, AdapterKind, Fabric, Gid, Interface, Port
from jobs.fabric.gpus import NvmlReading, links_between, read_gpus, read_nvml
from jobs.fabric.kernel_files import FileTree, parse_float, parse_integer, read_pci_device
from jobs.fabric.software import Process, read_software

RECORDED_NVML = "/nvml.json"
"""NVML's reading in a copied file tree."""
_RDMA, _CXI, _INTERFACES = "/sys/class/infiniband", "/sys/class/cxi", "/sys/class/net"
_LOOPBACK_TYPE = 772
_UP = 0x1
_ZERO_GID = re.compile(r"[0:]*|fe80(:0000){7}")
MOST_GIDS = 64
"""GIDs of a port that are read; those after them are unknown."""


def detect(root: Path, process: Process | None = None, nvml: NvmlReading | None = None) -> Fabric:
    """The description that the files below `root` give. Odd and unreadable files count as missing.

    `process` has the environment in which NCCL will run; the default is an empty one. `nvml` is NVML's
    reading; the default is the one in `nvml.json` of the root, if it is there. Raises nothing.
    """
    tree = FileTree(root)
    nvml = nvml or _recorded_nvml(tree)
    interfaces = read_interfaces(tree)
    gpus = read_gpus(tree, nvml)
    kind, adapters = choose_adapters(_read_adapters(tree, interfaces), interfaces, gpus)
    return Fabric(
        kind=kind,
        adapters=adapters,
        interfaces=interfaces,
        gpus=gpus,
        gpu_links=links_between(gpus, nvml),
        software=read_software(tree, process or Process(), nvml),
        product=_product(tree),
        host=tree.text("/proc/sys/kernel/hostname"),
    )


def detect_here() -> Fabric:
    """The description of this machine, with NVML and the environment of this process.

    NVML may take a second, and longer where a driver hangs.
    """
    return detect(Path("/"), current_process(), read_nvml())


def current_process(python_path: Sequence[str] | None = None) -> Process:
    """This process, with the module search path of the Python that loads the libraries."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container without an entry for this user
        home = os.path.expanduser("~")
    path = sys.path if python_path is None else python_path
    return Process(dict(os.environ), home, tuple(each for each in path if each.startswith("/")))


def _recorded_nvml(tree: FileTree) -> NvmlReading | None:
    try:
        return NvmlReading.from_json(json.loads(tree.text(RECORDED_NVML) or "null"))
    except (ValueError, RecursionError):
        return None


def _product(tree: FileTree) -> str | None:
    """Vendor and product by DMI; on processors without DMI, the model of the device tree."""
    folder = "/sys/class/dmi/id"
    vendor, name = (tree.text(f"{folder}/{file}") for file in ("sys_vendor", "product_name"))
    parts = [None if vendor and (name or "").startswith(vendor) else vendor, name]
    if tree.text(f"{folder}/chassis_asset_tag") == "OracleCloud.com":
        parts.append("(OracleCloud.com)")
    return " ".join(filter(None, parts)) or tree.text("/proc/device-tree/model")


def _read_adapters(tree: FileTree, interfaces: tuple[Interface, ...]) -> tuple[Adapter, ...]:
    """All adapters of the node, none of them chosen yet: InfiniBand, RoCE and EFA, then Slingshot."""
    rdma = [name for name in tree.names(_RDMA) if tree.exists_in(f"{_RDMA}/{name}", "ports", "device")]
    return (
        *(_rdma_adapter(tree, f"{_RDMA}/{name}", interfaces) for name in rdma),
        *(_cxi_adapter(tree, f"{_CXI}/{name}", interfaces) for name in tree.names(_CXI)),
    )


def _adapter(tree: FileTree, folder: str, kind: AdapterKind, ports: tuple[Port, ...], board: str) -> Adapter:
    """`board`: file with the id of the board."""
    return Adapter(
        name=folder.rpartition("/")[2],
        kind=kind,
        driver=tree.link_name(f"{folder}/device/driver"),
        firmware=tree.text(f"{folder}/fw_ver"),
        pci=read_pci_device(tree, f"{folder}/device"),
        ports=ports,
        evidence=folder,
        board=tree.text(f"{folder}/{board}"),
    )


def _rdma_adapter(tree: FileTree, folder: str, interfaces: tuple[Interface, ...]) -> Adapter:
    is_efa = tree.link_name(f"{folder}/device/driver") == "efa"
    numbers = [number for number in tree.names(f"{folder}/ports") if number.isdecimal() and number.isascii()]
    ports = tuple(_rdma_port(tree, folder, number, len(numbers), interfaces) for number in numbers)
    return _adapter(tree, folder, AdapterKind.EFA if is_efa else AdapterKind.VERBS, ports, "board_id")


def _rdma_port(
    tree: FileTree, adapter: str, number: str, ports: int, interfaces: tuple[Interface, ...]
) -> Port:
    folder, beside = f"{adapter}/ports/{number}", tree.names(f"{adapter}/device/net")
    link_layer, rate = tree.text(f"{folder}/link_layer"), tree.text(f"{folder}/rate")
    gids = _gids(tree, folder) if link_layer == "Ethernet" else ()
    named = {tree.text(f"{folder}/gid_attrs/ndevs/0"), *(gid.interface for gid in gids)} - {None}
    if not named and (ports == 1 or len(beside) == 1):
        named = set(beside)
    # The GIDs of a bonded adapter name the bond; `device/net` names its members.
    known = {interface.name for interface in interfaces} | set(beside)
    texts = [tree.text(f"{folder}/{name}") or "" for name in ("state", "phys_state")]  # such as `4: ACTIVE`
    state, physical_state = (text.rpartition(":")[2].strip() or None for text in texts)
    return Port(
        number=int(number),
        link_layer=link_layer,
        state=state,
        physical_state=physical_state,
        rate_gbit_per_s=parse_float(rate),
        rate=rate,
        interfaces=tuple(sorted(name for name in named if name in known)),
        gids=gids,
        link_downed=tree.integer(f"{folder}/counters/link_downed"),
    )


def _gids(tree: FileTree, port: str) -> tuple[Gid, ...]:
    """GIDs of a port that are set. Files of unset entries exist; reading their type is an error."""
    gids = []
    for name in tree.names(f"{port}/gids")[:MOST_GIDS]:
        address = tree.text(f"{port}/gids/{name}")
        kind = tree.text(f"{port}/gid_attrs/types/{name}")
        if name.isdecimal() and name.isascii() and address and kind and not _ZERO_GID.fullmatch(address):
            gids.append(Gid(int(name), address, kind, tree.text(f"{port}/gid_attrs/ndevs/{name}")))
    return tuple(gids)


def _cxi_adapter(tree: FileTree, folder: str, interfaces: tuple[Interface, ...]) -> Adapter:
    speed, link = (tree.integer(f"{folder}/device/properties/{name}") for name in ("speed", "link"))
    pci = read_pci_device(tree, f"{folder}/device")
    at_address = (each.name for each in interfaces if pci and each.pci and each.pci.address == pci.address)
    gbit = speed / 1000 if speed else None
    port = Port(
        number=1,
        link_layer="Ethernet",
        state=None if link is None else "ACTIVE" if link else "DOWN",
        physical_state=None,
        rate_gbit_per_s=gbit,
        rate=f"{gbit:g} Gb/sec" if gbit else None,
        interfaces=tuple(sorted({*tree.names(f"{folder}/device/net"), *at_address})),
    )
    return _adapter(tree, folder, AdapterKind.CXI, (port,), "device/fru/part_number")


def read_interfaces(tree: FileTree) -> tuple[Interface, ...]:
    """All interfaces but loopback."""
    default, networks = default_route_interface(tree), connected_networks(tree)
    return tuple(
        _read_interface(tree, name, name == default, networks.get(name, ()))
        for name in tree.names(_INTERFACES)
        if tree.integer(f"{_INTERFACES}/{name}/type") != _LOOPBACK_TYPE
        and name != "lo"
        and tree.exists(f"{_INTERFACES}/{name}/operstate")  # `bonding_masters` is a file beside them
    )


def _read_interface(tree: FileTree, name: str, is_default: bool, networks: tuple[str, ...]) -> Interface:
    folder = f"{_INTERFACES}/{name}"
    speed = tree.integer(f"{folder}/speed")
    return Interface(
        name=name,
        state=tree.text(f"{folder}/operstate"),
        hardware_type=tree.integer(f"{folder}/type"),
        speed_mbit_per_s=speed if speed is not None and 0 < speed < 2**31 else None,
        mtu_bytes=tree.integer(f"{folder}/mtu"),
        driver=tree.link_name(f"{folder}/device/driver"),
        pci=read_pci_device(tree, f"{folder}/device"),
        is_default_route=is_default,
        master=tree.link_name(f"{folder}/master"),
        members=tuple((tree.text(f"{folder}/bonding/slaves") or "").split()),
        networks=networks,
    )


def connected_networks(tree: FileTree) -> dict[str, tuple[str, ...]]:
    """IPv4 networks that each interface is connected to, by its routes without a gateway.

    Routes to single hosts and to 169.254.0.0/16 are left out.
    """
    networks: dict[str, tuple[str, ...]] = {}
    for fields in _routes(tree):
        try:
            address, gateway, mask = (
                ipaddress.IPv4Address(bytes.fromhex(fields[index])[::-1]) for index in (1, 2, 7)
            )
            network = ipaddress.IPv4Network(f"{address}/{mask}")
        except ValueError:
            continue
        if not int(gateway) and 0 < network.prefixlen < 32 and not network.is_link_local:
            networks[fields[0]] = (*networks.get(fields[0], ()), str(network))
    return networks


def default_route_interface(tree: FileTree) -> str | None:
    """The interface of the IPv4 default route with the lowest metric."""
    default = [
        (parse_integer(fields[6]) or 0, fields[0])
        for fields in _routes(tree)
        if fields[1] == fields[7] == "00000000"
    ]
    return min(default)[1] if default else None


def _routes(tree: FileTree) -> Iterator[list[str]]:
    """Columns of each IPv4 route that is up: interface, destination, gateway, flags, ..., metric, mask."""
    for line in (tree.text("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and (parse_integer(f"0x{fields[3]}") or 0) & _UP:
            yield fields
