"""NCCL's lists of interfaces and adapters: `[^][=]NAME[:PORT],...` of NCCL_SOCKET_IFNAME and NCCL_IB_HCA.

Names are prefixes; after `=` they are whole names; after `^` the named ones are excluded. A further `:`
begins the rail of a port (NCCL 2.30), which selects nothing. Source: `parseStringList` and `matchIfList` of
NCCL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"([^:]+)(?::([0-9]*))?")
"""Name and port; text without a number is port 0 for NCCL."""


@dataclass(frozen=True)
class NameEntry:
    """One name of a list."""

    name: str
    port: int | None
    """None: all ports."""
    is_exact: bool

    def matches(self, name: str, port: int | None = None) -> bool:
        """Whether it names an interface or a port of an adapter; `port` None: any port."""
        named = name == self.name if self.is_exact else name.startswith(self.name)
        return named and (port is None or self.port is None or port == self.port)


def parse_names(value: str) -> list[NameEntry]:
    """The names in a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA. Raises nothing."""
    names = value.removeprefix("^")
    matches = map(_ENTRY.match, names.removeprefix("=").split(","))
    return [
        NameEntry(match[1], None if match[2] is None else int(match[2] or 0), names.startswith("="))
        for match in matches
        if match
    ]


def permits(value: str, name: str, port: int | None = None) -> bool:
    """Whether a value permits an interface, or a port of an adapter; `port` None: any port. A value without a
    name permits all."""
    entries = parse_names(value)
    named = any(entry.matches(name, port) for entry in entries)
    return not entries or named is not value.startswith("^")
