"""Bytes that wait in this node's TCP connections, by address of the peer. Standard library only."""

from __future__ import annotations

import ipaddress
from collections import Counter
from pathlib import Path

_ESTABLISHED = "01"


def unsent_bytes(root: Path = Path("/proc/net")) -> dict[str, int]:
    """Bytes sent and not acknowledged, by address of the peer: a slow link or a stopped peer has many.

    Reads the send queues of the established connections; loopback is left out.
    """
    waiting: Counter[str] = Counter()
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            peer, state, queued = fields[2], fields[3], int(fields[4].partition(":")[0], 16)
            address = _address(peer.partition(":")[0])
            if state == _ESTABLISHED and queued and not address.is_loopback:
                waiting[str(address)] += queued
    return dict(waiting)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of `/proc/net/tcp`: words of 32 bits, little-endian as on x86 and Arm."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
