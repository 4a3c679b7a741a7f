"""Established TCP connections of this node, from `/proc/net/tcp`. Standard library only."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ESTABLISHED = "01"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Connection:
    """One end of a connection."""

    here: tuple[Address, int]
    """Address and port of this end."""
    peer: tuple[Address, int]
    unsent_bytes: int
    """Bytes sent and not acknowledged."""
    inode: str


def established(root: Path = Path("/proc/net")) -> Iterator[Connection]:
    """The connections of this process's network namespace; both ends of one within this node."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                unsent = int(fields[4].partition(":")[0], 16)
                yield Connection(_end(fields[1]), _end(fields[2]), unsent, fields[9])


def _end(text: str) -> tuple[Address, int]:
    """Address, in words of 32 bits, little-endian as on x86 and Arm, and port."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)
