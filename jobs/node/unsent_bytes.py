"""Bytes that wait in this node's TCP connections, by address of the peer. Standard library only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from jobs.node.tcp_connections import established


def unsent_bytes(root: Path = Path("/proc/net")) -> dict[str, int]:
    """Bytes sent and not acknowledged, by address of the peer: a slow link or a stopped peer has many.

    Reads the send queues of the established connections; loopback is left out.
    """
    waiting: Counter[str] = Counter()
    for connection in established(root):
        address, _ = connection.peer
        if connection.unsent_bytes and not address.is_loopback:
            waiting[str(address)] += connection.unsent_bytes
    return dict(waiting)
