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
    """The interface of the default route with the lowest metric: of IPv4, else of IPv6."""
    found = []
    for fields in _routes(tree):
        if fields[1] == fields[7] == "00000000":
            found.append((parse_integer(fields[6]) or 0, fields[0]))
    return min(found)[1] if found else _default_route_ipv6(tree)


def _routes(tree: FileTree) -> Iterator[list[str]]:
    """Columns of each IPv4 route that is up: interface, destination, gateway, flags, ..., metric, mask."""
    for line in (tree.text("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and _flags(fields[3]) & _UP:
            yield fields


def _default_route_ipv6(tree: FileTree) -> str | None:
    found = []
    for line in (tree.text("/proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if len(fields) != 10 or fields[1] != "00" or fields[0].strip("0") or fields[9] == "lo":
            continue
        if _flags(fields[8]) & _UP:
            found.append((_flags(fields[5]), fields[9]))
    return min(found)[1] if found else None


def _flags(hexadecimal: str) -> int:
    return parse_integer(f"0x{hexadecimal}") or 0
