"""Where the nodes of one attempt meet: node 0 reserves a port, publishes it, the others wait for it.

A taken port must not pass unnoticed: a launcher that finds one may quietly join the neighbour's store.
So the port is really bound before it is published, and stays bound (without listening) until torchrun
listens on it; the address is published in the attempt's own folder, so a port of an earlier attempt is
never met. Ports lie below the range the kernel hands out to clients. Standard library only.
"""

from __future__ import annotations

import fcntl
import random
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt
from jobs.node.allocation import Allocation
from jobs.node.waiting import poll_until

_SIOCGIFADDR = 0x8915
_PORT_COUNT = 8192


class RendezvousError(RuntimeError):
    """The nodes could not meet; the message is one line."""


@dataclass(frozen=True)
class Endpoint:
    """Node 0's address and port."""

    address: str
    port: int


def port_range() -> range:
    """The ports to choose from: just below the kernel's ephemeral range, where that leaves room."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        lowest = 32768
    first = lowest - _PORT_COUNT if lowest > _PORT_COUNT + 10_000 else 20_000
    return range(first, first + _PORT_COUNT)


def reserve_port(ports: range | None = None) -> socket.socket:
    """A socket bound to a free port. While it is open only a listener with SO_REUSEADDR (torchrun's
    store is one) can take that port. Raises `RendezvousError` when none of them is free."""
    ports = port_range() if ports is None else ports
    for port in random.SystemRandom().sample(ports, len(ports)):  # a few microseconds each
        reserved = _open()
        try:
            reserved.bind(("", port))  # without SO_REUSEADDR: refused if anybody else holds the port
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved
    raise RendezvousError(f"no free port in {ports.start}-{ports.stop - 1}")


def _open() -> socket.socket:
    """A socket for IPv6 and IPv4 together, as torchrun's store opens it, or for IPv4 where that is all."""
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both


def interface_towards(host: str) -> str | None:
    """The network interface by which this node reaches another one; None where that cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # looks up the route; sends nothing
        except OSError:
            return None
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no such address
            if answer[20:24] == address:
                return name
    return None


def publish_endpoint(attempt: Attempt, address: str) -> tuple[Endpoint, socket.socket]:
    """Reserve a port on this node and tell the others; keep the socket open until torchrun has ended."""
    reserved = reserve_port()
    meeting = Endpoint(address, reserved.getsockname()[1])
    write_json(attempt.rendezvous, {"address": meeting.address, "port": meeting.port})
    return meeting, reserved


def wait_for_endpoint(attempt: Attempt, timeout_s: float, allocation: Allocation | None = None) -> Endpoint:
    """The published address. Raises `RendezvousError` when it does not appear in time, and `JobEnded` when
    the job of `allocation` is being ended."""
    found = poll_until(lambda: _published(attempt), timeout_s, allocation)
    if found is None:
        raise RendezvousError(f"node 0 did not publish {attempt.rendezvous.name} within {timeout_s:g} s")
    return found


def _published(attempt: Attempt) -> Endpoint | None:
    try:
        found = read_json(attempt.rendezvous)
    except FileNotFoundError:
        return None
    return Endpoint(found["address"], int(found["port"]))
