"""Connections of node 0 to the faster interfaces of the other nodes, over addresses of loopback."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import pytest

from jobs.fabric.description import Interface
from jobs.node import rendezvous
from jobs.node.preflight import reachability
from jobs.node.preflight.reachability import listen, obstacle

ADDRESSES = {"eth0": "127.0.0.1", "eth1": "127.0.0.2", "eth2": None, "eth3": "10.9.9.9"}
INTO = {"127.0.0.0/8": "eth0", "10.0.0.0/8": "eth3"}


def interface(name: str, *networks: str) -> Interface:
    return Interface(name, "up", 1, 100_000, 9000, "ice", None, networks=networks)


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "address_of", ADDRESSES.get)
    monkeypatch.setattr(rendezvous, "interface_into", INTO.get)


def test_each_interface_with_an_address_in_its_network_is_offered() -> None:
    interfaces = [
        interface("eth0", "10.0.0.0/8", "127.0.0.0/8"),
        interface("eth1", "10.0.0.0/8"),
        interface("eth1", "127.0.0.0/8"),  # the kernel reaches this network over eth0
        interface("eth2", "127.0.0.0/8"),
        interface("eth3", "10.0.0.0/8"),  # not an address of this machine
    ]
    with contextlib.ExitStack() as held:
        (offer,) = listen(interfaces, held)
        assert (offer.interface, offer.network, offer.mbit_per_s) == ("eth0", "127.0.0.0/8", 100_000)
        socket.create_connection((offer.address, offer.port)).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((offer.address, offer.port))


def test_the_first_node_that_cannot_be_reached_is_named() -> None:
    with contextlib.ExitStack() as held:
        (own,) = listen([interface("eth0", "127.0.0.0/8")], held)
        listener = held.enter_context(socket.create_server(("127.0.0.2", 0)))
        other = replace(own, address="127.0.0.2", port=listener.getsockname()[1])
        assert obstacle(own, {}) is None
        assert obstacle(own, {"n1": other}) is None
        elsewhere = replace(own, address="127.0.0.9")
        assert obstacle(elsewhere, {"n1": other}) == (
            "the route to 127.0.0.2 of node n1 does not begin at eth0"
        )
    assert obstacle(own, {"n1": other}) == "node n1 cannot be reached at 127.0.0.2: Connection refused"


def test_each_node_has_to_acknowledge_full_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small receive buffer stands for a path that loses full packets: the handshake succeeds there, too."""
    monkeypatch.setattr(reachability, "_OPEN_AT_ONCE", 2)
    with contextlib.ExitStack() as held:
        (own,) = listen([interface("eth0", "127.0.0.0/8")], held)
        others = {}
        for host in ("n1", "n2", "n3"):
            listener = held.enter_context(socket.create_server(("127.0.0.2", 0)))
            others[host] = replace(own, address="127.0.0.2", port=listener.getsockname()[1])
        assert obstacle(own, others) is None
        monkeypatch.setattr(reachability, "_WITHIN_S", 0.3)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        assert obstacle(own, others) == (
            "node n3 does not receive full packets at 127.0.0.2: compare the MTUs of interfaces and switches"
        )
