"""Bytes that wait in the TCP connections of a node."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core.exit_evidence import read_evidence
from jobs.node import hang
from jobs.node.unsent_bytes import unsent_bytes

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    HEAD
    + """\
   0: 0100000A:A001 0200000A:B001 01 0000FFFF:00000000 01:00000014 00000000     0        0 1 1
   1: 0100000A:A002 0200000A:B002 01 00000001:00000000 01:00000014 00000000     0        0 2 1
   2: 0100000A:A003 0300000A:B003 01 00000000:00000009 00:00000000 00000000     0        0 3 1
   3: 0100000A:A004 0400000A:B004 06 00000009:00000000 00:00000000 00000000     0        0 4 1
   4: 0100007F:A005 0100007F:B005 01 00000009:00000000 00:00000000 00000000     0        0 5 1
"""
)
TCP6 = HEAD + (
    "   0: 0000000000000000FFFF00000100000A:A006 0000000000000000FFFF00000200000A:B006 01 00000010:00000000 "
    "00:00000000 00000000     0        0 6 1\n"
)


def test_send_queues_are_summed_by_peer(tmp_path: Path) -> None:
    assert unsent_bytes(tmp_path) == {}
    write_text(tmp_path / "tcp", TCP)
    write_text(tmp_path / "tcp6", TCP6)
    assert unsent_bytes(tmp_path) == {"10.0.0.2": 0xFFFF + 1 + 0x10}


@pytest.fixture
def own_address() -> Iterator[str]:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        yield str(probe.getsockname()[0])


def test_a_peer_that_does_not_read(own_address: str) -> None:
    with (
        socket.create_server((own_address, 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
    ):
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 20))
        assert unsent_bytes()[own_address] > 1000


def test_the_evidence_has_the_bytes_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"10.0.0.{node}": (f"n{node}.cluster", [], []) for node in (1, 2, 3)}
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: names[address])
    run = RunDir(tmp_path / "sweep" / "run")
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "nodes": ["n1", "n2", "n3"]})
    for node, waiting in ((0, {"10.0.0.2": 50_000}), (1, {"10.0.0.3": 70_000}), (2, {})):
        monkeypatch.setattr(hang, "unsent_bytes", lambda waiting=waiting: waiting)
        write_json(attempt.node_ranks(node), hang.positions_record([], hung=True))
    found = read_evidence(run, attempt, {}, None, None).unsent_bytes
    assert found == {(0, 1): 50_000, (1, 2): 70_000}
