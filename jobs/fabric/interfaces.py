"""Network interfaces of the kernel and the one of the default route."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import replace

from jobs.fabric.description import Interface
from jobs.fabric.kernel_files import FileTree, parse_integer
from jobs.fabric.pci import read_pci_device

_FOLDER = "/sys/class/net"
_LOOPBACK_TYPE = 772
_UP = 0x1


def read_interfaces(tree: FileTree) -> tuple[Interface, ...]:
    """All interfaces but loopback."""
    default, networks = default_route_interface(tree), connected_networks(tree)
    return tuple(
        replace(_read_interface(tree, name, default), networks=networks.get(name, ()))
        for name in tree.names(_FOLDER)
        if tree.integer(f"{_FOLDER}/{name}/type") != _LOOPBACK_TYPE
        and name != "lo"
        and tree.exists(f"{_FOLDER}/{name}/operstate")  # `bonding_masters` is a file beside the interfaces
    )


def _read_interface(tree: FileTree, name: str, default: str | None) -> Interface:
    folder = f"{_FOLDER}/{name}"
    speed = tree.integer(f"{folder}/speed")
    return Interface(
        name=name,
        state=tree.text(f"{folder}/operstate"),
        hardware_type=tree.integer(f"{folder}/type"),
        speed_mbit_per_s=speed if speed is not None and 0 < speed < 2**31 else None,
        mtu_bytes=tree.integer(f"{folder}/mtu"),
        driver=tree.link_name(f"{folder}/device/driver"),
        pci=read_pci_device(tree, f"{folder}/device"),
        is_default_route=name == default,
        master=tree.link_name(f"{folder}/master"),
        members=tuple((tree.text(f"{folder}/bonding/slaves") or "").split()),
    )


def connected_networks(tree: FileTree) -> dict[str, tuple[str, ...]]:
    """IPv4 networks that each interface is connected to, by its routes without a gateway.

    Routes to single hosts and to 169.254.0.0/16 are left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    for fields in _routes(tree):
        try:
            address, gateway, mask = (
                ipaddress.IPv4Address(bytes.fromhex(fields[index])[::-1]) for index in (1, 2, 7)
            )
            network = ipaddress.IPv4Network(f"{address}/{mask}")
        except ValueError:
            continue
        if not int(gateway) and 0 < network.prefixlen < 32 and not network.is_link_local:
            found[fields[0]] = (*found.get(fields[0], ()), str(network))
    return found


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
