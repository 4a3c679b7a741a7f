"""Ports, endpoints and interfaces of the rendezvous."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from disttrain.records.run_directory import Attempt
from jobs.node import rendezvous
from jobs.node.peers import CannotStart


def test_ports_lie_below_the_ephemeral_range():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = rendezvous.port_range()
    assert ports.stop <= lowest or lowest < 20_000
    assert ports.start > 1024


def test_only_torchrun_can_take_a_reserved_port():
    with rendezvous.reserve_port() as reserved:
        port = reserved.getsockname()[1]
        for _ in range(2):  # neither a plain program nor another agent
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("", port))
        with pytest.raises(CannotStart, match="no free port"):
            rendezvous.reserve_port(range(port, port + 1))
        with socket.create_server(("", port)) as store:  # sets SO_REUSEADDR, as torchrun's store does
            assert store.getsockname()[1] == port
    with rendezvous.reserve_port(range(port, port + 1)) as again:  # the only free one
        assert again.getsockname()[1] == port


def test_a_taken_port_is_skipped():
    with rendezvous.reserve_port() as taken:
        port = taken.getsockname()[1]
        with rendezvous.reserve_port(range(port, port + 30)) as reserved:
            assert reserved.getsockname()[1] != port


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::", "::1"])
def test_a_port_held_on_any_address_is_taken(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            squatter.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        squatter.bind((address, 0))
        port = squatter.getsockname()[1]
        with pytest.raises(CannotStart, match=f"no free port in {port}-{port}"):
            rendezvous.reserve_port(range(port, port + 1))


def test_a_published_endpoint_is_found(tmp_path):
    attempt = Attempt(tmp_path / "000", 0)
    found: list[rendezvous.Endpoint] = []
    waiting = threading.Thread(
        target=lambda: found.append(rendezvous.wait_for_endpoint(attempt, timeout_s=30))
    )
    waiting.start()
    meeting, reserved = rendezvous.publish_endpoint(attempt, "node-a")
    waiting.join()
    reserved.close()
    assert found == [meeting]
    assert meeting.address == "node-a"


def test_waiting_is_bounded(tmp_path):
    with pytest.raises(CannotStart, match=r"within 0\.01 s"):
        rendezvous.wait_for_endpoint(Attempt(tmp_path, 0), timeout_s=0.01)


def test_the_interface_towards_another_node():
    assert rendezvous.interface_towards("127.0.0.1") == "lo"
    assert rendezvous.interface_towards("no-such-node.invalid") is None
