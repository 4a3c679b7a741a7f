"""The rendezvous of an attempt's nodes: node 0 reserves a port and publishes it, the other nodes wait for it.

A launcher that finds its port taken may silently join the store of another job. So node 0 binds the port
before it is published, and keeps it bound (without listening) until torchrun listens on it. The endpoint is
published in the attempt's own folder, so no node reads the port of an earlier attempt. Ports lie below the
kernel's ephemeral range. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt
from jobs.node.allocation import Allocation
from jobs.node.waiting import poll_until

_SIOCGIFADDR = 0x8915
_PORT_COUNT = 8192


class RendezvousError(RuntimeError):
    """The rendezvous failed; the message is one line."""


@dataclass(frozen=True)
class Endpoint:
    """Address and port of node 0."""

    address: str
    port: int
    variables: tuple[Mapping[str, Any], ...] = ()
    """Derived variables that have to agree on all nodes, as node 0 derived them."""
    interface: Mapping[str, Any] | None = None
    """`name` and `networks` of the interface that node 0 uses for TCP; None if unknown."""


def port_range() -> range:
    """The candidate ports: just below the kernel's ephemeral range, or from 20000 where that starts low."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError):
        lowest = 32768
    first = lowest - _PORT_COUNT if lowest > _PORT_COUNT + 10_000 else 20_000
    return range(first, first + _PORT_COUNT)


def reserve_port(ports: range | None = None) -> socket.socket:
    """A socket bound to a free port. Raises `RendezvousError` when no port is free.

    While the socket is open, only a listener with SO_REUSEADDR, such as torchrun's store, can use the port.
    """
    ports = port_range() if ports is None else ports
    for port in random.SystemRandom().sample(ports, len(ports)):  # each try takes a few microseconds
        reserved = _open()
        try:
            reserved.bind(("", port))  # without SO_REUSEADDR, so a port in use is refused
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved
    raise RendezvousError(f"no free port in {ports.start}-{ports.stop - 1}")


def _open() -> socket.socket:
    """A socket for IPv6 and IPv4 together, like that of torchrun's store, or for IPv4 without IPv6."""
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both


def interface_towards(host: str) -> str | None:
    """The network interface by which this node reaches `host`; None if it cannot be found."""
    address = source_towards(host)
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address and address_of(name) == address), None)


def source_towards(host: str) -> str | None:
    """The IPv4 address from which this node reaches `host`; None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # selects a route; sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def address_of(interface: str) -> str | None:
    """The first IPv4 address of an interface of this node; None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def publish_endpoint(
    attempt: Attempt,
    address: str,
    variables: Sequence[Mapping[str, Any]] = (),
    interface: Mapping[str, Any] | None = None,
) -> tuple[Endpoint, socket.socket]:
    """Reserve a port on this node and publish it; keep the socket open until torchrun has ended.

    `variables` are the derived variables that the other nodes take over; see `Endpoint` for `interface`.
    """
    reserved = reserve_port()
    endpoint = Endpoint(address, reserved.getsockname()[1], tuple(variables), interface)
    write_json(attempt.rendezvous, asdict(endpoint))
    return endpoint, reserved


def wait_for_endpoint(attempt: Attempt, timeout_s: float, allocation: Allocation | None = None) -> Endpoint:
    """The published endpoint. Raises `RendezvousError` after `timeout_s`, and `JobEnded` when the job of
    `allocation` is being ended."""
    found = poll_until(lambda: _published(attempt), timeout_s, allocation)
    if found is None:
        raise RendezvousError(f"node 0 did not publish {attempt.rendezvous.name} within {timeout_s:g} s")
    return found


def refresh(folder: Path) -> None:
    """Make files that other nodes have added to a folder visible here.

    NFS caches that a file is absent. It compares a folder with the server when the folder is opened.
    """
    with contextlib.suppress(OSError):
        os.listdir(folder)


def _published(attempt: Attempt) -> Endpoint | None:
    refresh(attempt.rendezvous.parent)
    try:
        found = read_json(attempt.rendezvous)
    except FileNotFoundError:
        return None
    return endpoint_of(found)


def endpoint_of(record: Mapping[str, Any]) -> Endpoint:
    """The endpoint in a parsed JSON file."""
    variables = tuple(record.get("variables", ()))
    return Endpoint(record["address"], int(record["port"]), variables, record.get("interface"))
