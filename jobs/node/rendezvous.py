"""The rendezvous of an attempt's nodes: node 0 reserves a port and publishes it, the other nodes wait for it.

A launcher that finds its port taken may silently join the store of another job. So node 0 binds the port
before it is published, and keeps it bound (without listening) until torchrun listens on it. The endpoint is
published in the attempt's own folder, so no node reads the port of an earlier attempt. Ports lie below the
kernel's ephemeral range.
"""

from __future__ import annotations

import random
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from jobs.node.allocation import Allocation
from jobs.node.peers import CannotStart, answer_of_node_0

_PORT_COUNT = 8192


@dataclass(frozen=True)
class Endpoint:
    """Address and port of node 0."""

    address: str
    port: int


def port_range() -> range:
    """The candidate ports: just below the kernel's ephemeral range, or from 20000 where that starts low."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError):
        lowest = 32768
    first = lowest - _PORT_COUNT if lowest > _PORT_COUNT + 10_000 else 20_000
    return range(first, first + _PORT_COUNT)


def reserve_port(ports: range | None = None) -> socket.socket:
    """A socket bound to a free port. Raises `CannotStart` when no port is free.

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
    raise CannotStart(f"no free port in {ports.start}-{ports.stop - 1}")


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
    import psutil  # 0.1 s, which jobs of one node save

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # selects a route; sends nothing
        except OSError:
            return None
        own = probe.getsockname()[0]
    addresses = psutil.net_if_addrs().items()
    return next((name for name, of_it in addresses if any(each.address == own for each in of_it)), None)


def publish_endpoint(attempt: Attempt, address: str) -> tuple[Endpoint, socket.socket]:
    """Reserve a port on this node and publish it; keep the socket open until torchrun has ended."""
    reserved = reserve_port()
    endpoint = Endpoint(address, reserved.getsockname()[1])
    write_json(attempt.rendezvous, asdict(endpoint))
    return endpoint, reserved


def wait_for_endpoint(attempt: Attempt, timeout_s: float, allocation: Allocation | None = None) -> Endpoint:
    """The published endpoint. Raises as `answer_of_node_0`."""
    return Endpoint(**answer_of_node_0(attempt, allocation, timeout_s, attempt.rendezvous))
