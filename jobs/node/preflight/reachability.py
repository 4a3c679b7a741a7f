"""Whether the nodes reach each other over their faster interfaces. Standard library only.

Each node listens at the addresses of these interfaces while the pre-flight lasts. Node 0 connects to the
other nodes and sends data. The kernel completes the connections and acknowledges the data, so that no process
has to accept them.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence

from jobs.fabric.description import Interface
from jobs.fabric.shared_network import Offer
from jobs.node import rendezvous

_WITHIN_S = 2.0
"""Limit for each connection, and for the data of all connections that are open together."""
_SENT_BYTES = 2**15
"""More than a full packet of jumbo frames, and less than a node receives before a process accepts."""
_OPEN_AT_ONCE = 128
"""Connections, each with a file descriptor."""


def listen(interfaces: Sequence[Interface], held: contextlib.ExitStack) -> list[Offer]:
    """Listen at the address of each interface until `held` is closed.

    Left out are interfaces without an address, and those by which the kernel does not reach their network, as
    all but one of several in the same network.
    """
    found = []
    for each in interfaces:
        address = rendezvous.address_of(each.name)
        network = _network_of(address, each.networks) if address else None
        if address is None or network is None or rendezvous.interface_into(network) != each.name:
            continue
        with contextlib.suppress(OSError):
            listener = held.enter_context(socket.create_server((address, 0)))
            port = listener.getsockname()[1]
            found.append(Offer(each.name, network, each.speed_mbit_per_s or 0, address, port))
    return found


def _network_of(address: str, networks: Sequence[str]) -> str | None:
    own = ipaddress.ip_address(address)
    return next((network for network in networks if own in ipaddress.ip_network(network)), None)


def obstacle(own: Offer, others: Mapping[str, Offer]) -> str | None:
    """The reason that the first unreachable host cannot be reached over an interface; None if all can.

    A handshake has small packets alone: where the interfaces have a larger MTU than a switch between them,
    only data show that full packets are lost.
    """
    hosts = list(others)
    batches = (hosts[first : first + _OPEN_AT_ONCE] for first in range(0, len(hosts), _OPEN_AT_ONCE))
    reasons = (_obstacle(own, {host: others[host] for host in batch}) for batch in batches)
    return next((reason for reason in reasons if reason is not None), None)


def _obstacle(own: Offer, others: Mapping[str, Offer]) -> str | None:
    with contextlib.ExitStack() as held:
        connections = {}
        for host, offer in others.items():
            try:
                connection = socket.create_connection((offer.address, offer.port), _WITHIN_S)
                held.enter_context(connection)
                if connection.getsockname()[0] != own.address:
                    return f"the route to {offer.address} of node {host} does not begin at {own.interface}"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _SENT_BYTES)
                connection.sendall(bytes(_SENT_BYTES))
            except OSError as error:
                return f"node {host} cannot be reached at {offer.address}: {error.strerror or error}"
            connections[host] = connection
        deadline = time.monotonic() + _WITHIN_S
        for host, connection in connections.items():
            while _unacknowledged_bytes(connection):
                if time.monotonic() > deadline:
                    return (
                        f"node {host} does not receive full packets at {others[host].address}: compare the "
                        "MTUs of interfaces and switches"
                    )
                time.sleep(0.005)  # a node may delay the last acknowledgement by 40 ms
    return None


def _unacknowledged_bytes(connection: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    return int(count)
