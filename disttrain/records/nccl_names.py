"""NCCL's lists of interfaces and adapters: `[^][=]NAME[:PORT],...` of NCCL_SOCKET_IFNAME and NCCL_IB_HCA.

Names are prefixes; after `=` they are whole names; after `^` the named ones are excluded. A further `:`
begins the rail of a port (NCCL 2.30), which selects nothing. Source: `parseStringList` and `matchIfList` of
NCCL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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


@dataclass(frozen=True)
class NameList:
    """A parsed list. Without an entry, it permits every name."""

    entries: tuple[NameEntry, ...]
    excludes: bool
    """Whether the entries are excluded."""

    def permits(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL may use an interface, or a port of an adapter; `port` None: any port."""
        named = any(entry.matches(name, port) for entry in self.entries)
        return not self.entries or named is not self.excludes


def parse_names(value: str) -> NameList:
    """The list in a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA. Raises nothing."""
    excludes = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    words = (word.split(":") for word in rest.removeprefix("=").split(","))
    entries = (NameEntry(word[0], _port(word[1:]), is_exact) for word in words if word[0])
    return NameList(tuple(entries), excludes)


def permits(value: str, name: str, port: int | None = None) -> bool:
    """Whether a value permits an interface, or a port of an adapter; `port` None: any port."""
    return parse_names(value).permits(name, port)


def _port(parts: list[str]) -> int | None:
    """The number at the start of the part after the name; text without a number is port 0 for NCCL."""
    if not parts:
        return None
    digits = re.match(r"[0-9]+", parts[0])
    return int(digits[0]) if digits else 0
