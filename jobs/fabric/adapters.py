"""Network adapters that NCCL uses without TCP: InfiniBand and RoCE, EFA, Slingshot.

Sources of the formats: `Documentation/ABI/stable/sysfs-class-infiniband` and `efa_verbs.c` of Linux, and
`cass_sysfs.c` of the CXI driver (`speed` in Mbit/s, `link` 0 or 1).
"""

from __future__ import annotations

import re

from jobs.fabric.description import Adapter, AdapterKind, Gid, Interface, Port
from jobs.fabric.kernel_files import FileTree, parse_float
from jobs.fabric.pci import read_pci_device

_RDMA = "/sys/class/infiniband"
_CXI = "/sys/class/cxi"
_ZERO_GID = re.compile(r"[0:]*|fe80(:0000){7}")
MOST_GIDS = 64
"""GIDs of a port that are read; those after them are unknown."""


def read_adapters(tree: FileTree, interfaces: tuple[Interface, ...]) -> tuple[Adapter, ...]:
    """All adapters of the node, none of them chosen yet. `interfaces` are those of the node."""
    rdma = [_rdma_adapter(tree, name, interfaces) for name in tree.names(_RDMA) if _is_adapter(tree, name)]
    cxi = [_cxi_adapter(tree, name, interfaces) for name in tree.names(_CXI)]
    return (*rdma, *cxi)


def _is_adapter(tree: FileTree, name: str) -> bool:
    return tree.exists(f"{_RDMA}/{name}/ports") or tree.exists(f"{_RDMA}/{name}/device")


def _rdma_adapter(tree: FileTree, name: str, interfaces: tuple[Interface, ...]) -> Adapter:
    folder = f"{_RDMA}/{name}"
    driver = tree.link_name(f"{folder}/device/driver")
    beside = tuple(tree.names(f"{folder}/device/net"))
    numbers = [number for number in tree.names(f"{folder}/ports") if number.isdecimal() and number.isascii()]
    return Adapter(
        name=name,
        kind=AdapterKind.EFA if driver == "efa" else AdapterKind.VERBS,
        driver=driver,
        firmware=tree.text(f"{folder}/fw_ver"),
        pci=read_pci_device(tree, f"{folder}/device"),
        ports=tuple(_rdma_port(tree, folder, number, beside, len(numbers), interfaces) for number in numbers),
        evidence=folder,
        board=tree.text(f"{folder}/board_id"),
    )


def _rdma_port(
    tree: FileTree,
    adapter: str,
    number: str,
    beside: tuple[str, ...],
    ports: int,
    interfaces: tuple[Interface, ...],
) -> Port:
    folder = f"{adapter}/ports/{number}"
    link_layer = tree.text(f"{folder}/link_layer")
    rate = tree.text(f"{folder}/rate")
    gids = _gids(tree, folder) if link_layer == "Ethernet" else ()
    named = {tree.text(f"{folder}/gid_attrs/ndevs/0"), *(gid.interface for gid in gids)} - {None}
    if not named and (ports == 1 or len(beside) == 1):
        named = set(beside)
    # The GIDs of a bonded adapter name the bond; `device/net` names its members.
    known = {each.name for each in interfaces} | set(beside)
    return Port(
        number=int(number),
        link_layer=link_layer,
        state=_named(tree.text(f"{folder}/state")),
        physical_state=_named(tree.text(f"{folder}/phys_state")),
        rate_gbit_per_s=parse_float(rate),
        rate=rate,
        interfaces=tuple(sorted(name for name in named if name in known)),
        gids=gids,
        link_downed=tree.integer(f"{folder}/counters/link_downed"),
    )


def _named(state: str | None) -> str | None:
    """The name in a state such as `4: ACTIVE`."""
    return state.rpartition(":")[2].strip() or None if state else None


def _gids(tree: FileTree, port: str) -> tuple[Gid, ...]:
    """GIDs of a port that are set. Files of unset entries exist; reading their type is an error."""
    found = []
    for name in tree.names(f"{port}/gids")[:MOST_GIDS]:
        address = tree.text(f"{port}/gids/{name}")
        kind = tree.text(f"{port}/gid_attrs/types/{name}")
        if name.isdecimal() and name.isascii() and address and kind and not _ZERO_GID.fullmatch(address):
            found.append(Gid(int(name), address, kind, tree.text(f"{port}/gid_attrs/ndevs/{name}")))
    return tuple(found)


def _cxi_adapter(tree: FileTree, name: str, interfaces: tuple[Interface, ...]) -> Adapter:
    folder = f"{_CXI}/{name}"
    properties = f"{folder}/device/properties"
    pci = read_pci_device(tree, f"{folder}/device")
    beside = {*tree.names(f"{folder}/device/net")}
    beside |= {each.name for each in interfaces if pci and each.pci and each.pci.address == pci.address}
    speed = tree.integer(f"{properties}/speed")
    link = tree.integer(f"{properties}/link")
    gbit = speed / 1000 if speed else None
    port = Port(
        number=1,
        link_layer="Ethernet",
        state=None if link is None else "ACTIVE" if link else "DOWN",
        physical_state=None,
        rate_gbit_per_s=gbit,
        rate=f"{gbit:g} Gb/sec" if gbit else None,
        interfaces=tuple(sorted(beside)),
    )
    return Adapter(
        name=name,
        kind=AdapterKind.CXI,
        driver=tree.link_name(f"{folder}/device/driver"),
        firmware=None,
        pci=pci,
        ports=(port,),
        evidence=folder,
        board=tree.text(f"{folder}/device/fru/part_number"),
    )
