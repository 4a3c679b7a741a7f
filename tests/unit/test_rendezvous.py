"""Where the nodes meet."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from disttrain.rundir import Attempt
from jobs import rendezvous


def test_ports_lie_below_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = rendezvous.port_range()
    assert ports.stop <= lowest or lowest < 20_000
    assert ports.start > 1024


def test_a_reserved_port_is_nobody_elses_but_torchruns() -> None:
    with rendezvous.reserve_port() as reserved:
        port = reserved.getsockname()[1]
        for _ in range(2):  # neither a plain program nor another agent
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("", port))
        with pytest.raises(rendezvous.RendezvousError, match="no free port"):
            rendezvous.reserve_port(range(port, port + 1))
        with socket.create_server(("", port)) as store:  # sets SO_REUSEADDR, as torchrun's store does
            assert store.getsockname()[1] == port


def test_a_taken_port_is_passed_over() -> None:
    with rendezvous.reserve_port() as taken:
        port = taken.getsockname()[1]
        with rendezvous.reserve_port(range(port, port + 30)) as reserved:
            assert reserved.getsockname()[1] != port


def test_published_and_found(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "000", 0)
    found: list[rendezvous.Rendezvous] = []
    waiting = threading.Thread(target=lambda: found.append(rendezvous.wait(attempt, timeout_s=30)))
    waiting.start()
    meeting, reserved = rendezvous.publish(attempt, "node-a")
    waiting.join()
    reserved.close()
    assert found == [meeting]
    assert meeting.address == "node-a"


def test_waiting_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(rendezvous.RendezvousError, match=r"within 0\.01 s"):
        rendezvous.wait(Attempt(tmp_path, 0), timeout_s=0.01)


def test_the_interface_towards_another_node() -> None:
    assert rendezvous.interface_towards("127.0.0.1") == "lo"
    assert rendezvous.interface_towards("no-such-node.invalid") is None
