"""A mini-cluster whose links have a set rate, and the rate of one TCP stream over them."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.minicluster import discovery
from tests.support.minicluster import MiniCluster, cluster_verb, node_prefix

REAL_TIME = ["chrt", "--rr", "1"]
RECEIVER = """
import socket, time
listener = socket.create_server(("", 4997))
print("listening", flush=True)
stream, _ = listener.accept()
buffer, skipped = bytearray(1 << 20), 0
while skipped < 20_000_000:
    skipped += stream.recv_into(buffer)
began, received = time.monotonic(), 0
while size := stream.recv_into(buffer):
    received += size
    ended = time.monotonic()
print(received / (ended - began))
"""
SENDER = "import socket, sys; socket.create_connection((sys.argv[1], 4997)).sendall(bytes(100_000_000))"


def real_time() -> list[str]:
    """The prefix that runs a command at real-time priority, so that no load delays it; empty unless root."""
    try:
        subprocess.run([*REAL_TIME, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return REAL_TIME


@contextmanager
def linked(name: str, nodes: int, ahead: list[str]) -> Iterator[MiniCluster]:
    """A cluster of nodes for one rank each, on links of 1 Gbit/s."""
    flags = ["--nodes", str(nodes), "--gpus-per-node", "1", "--link", "1gbit", "--no-accounting"]
    try:
        yield MiniCluster.up(name, *flags, ahead=ahead)
    finally:
        if name in discovery.cluster_names():
            cluster_verb("down", "--name", name)


def stream_bytes_per_s(fleet: MiniCluster, ahead: list[str]) -> float:
    """Bytes per second of one TCP stream from the first node to the second: the median of three."""
    rates = []
    for _ in range(3):
        receiver = subprocess.Popen(
            [*ahead, *node_prefix(fleet.name, 2), sys.executable, "-c", RECEIVER],
            stdout=subprocess.PIPE,
            text=True,
        )
        with receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listening\n"
            fleet.ask(*ahead, *node_prefix(fleet.name, 1), sys.executable, "-c", SENDER, f"{fleet.name}-2")
            rates.append(float(receiver.stdout.readline()))
    return statistics.median(rates)
