"""Counters of a node's links: RDMA ports and network interfaces, with the traffic of the measured steps.

Traffic over RDMA does not appear in the counters of an interface. TCP does not appear in those of an RDMA
port, unless it runs over IPoIB. Interfaces stacked on others (bonds, bridges, VLANs) are left out, as the
links below them count the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.records.nccl_names import parse_names, permits
from disttrain.records.run_directory import ADAPTERS

_DATA_UNIT_BYTES = 4
"""InfiniBand counts in words of 4 bytes (IBTA specification, PortCounters)."""
_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A link of this node. Its name is that of an interface, or `adapter/port`."""

    name: str
    kind: str
    """`adapter` or `interface`, as in `LinkTraffic`."""
    counters: tuple[Path, Path] | None
    """Files of sent and received data; None for interfaces, which share a file."""
    unit_bytes: int = 1
    line_rate_bytes_per_s: float | None = None
    expected: bool = False

    @property
    def constants(self) -> dict[str, Any]:
        """The fields of `LinkTraffic` that are known before any traffic."""
        rate = self.line_rate_bytes_per_s
        return {"kind": self.kind, "expected": self.expected, "line_rate_bytes_per_s": rate}


def find_links(backend: str | None, environ: Mapping[str, str], root: Path = Path("/")) -> list[Link]:
    """The active RDMA ports with readable counters, and the network interfaces of this node.

    NCCL is expected to use the RDMA ports that the agent of the node has chosen (`ADAPTERS`), or else the
    interfaces that NCCL_SOCKET_IFNAME permits. gloo is expected to use those of GLOO_SOCKET_IFNAME. Loopback
    counts only where it is expected.
    """
    ports = _active_ports(root)
    chosen = _expected_ports(ports, environ) if backend == "nccl" else set()
    interfaces = []
    for name in read_interfaces(root):
        expected = not chosen and _expects_interface(name, backend, environ)
        if (name != "lo" or expected) and not _is_stacked(root, name):
            rate = _interface_rate(root, name)
            interfaces.append(Link(name, "interface", None, 1, rate, expected))
    return [
        *(Link(**{**vars(link), "expected": link.name in chosen}) for link in ports if link.counters),
        *interfaces,
    ]


def expected_adapters(backend: str | None, environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """Names of the ports that NCCL should use, also of those that `find_links` leaves out because no counter
    can be read: ports of Slingshot, and those of a container without the counters. Empty for TCP."""
    return sorted(_expected_ports(_active_ports(root), environ)) if backend == "nccl" else []


def read_links(links: Sequence[Link], root: Path = Path("/")) -> dict[str, dict[str, float]]:
    """Bytes sent and received of the links that can be read, by name."""
    interfaces = read_interfaces(root)
    counters: dict[str, dict[str, float]] = {}
    for link in links:
        values = interfaces.get(link.name) if link.counters is None else _counts(link.counters)
        if values is not None:
            sent, received = (link.unit_bytes * value for value in values)
            counters[link.name] = {"sent_bytes": sent, "received_bytes": received}
    return counters


def read_interfaces(root: Path = Path("/")) -> dict[str, tuple[int, int]]:
    """Bytes sent and received by each interface of this process's network namespace."""
    found = {}
    for line in (root / "proc/self/net/dev").read_text().splitlines()[2:]:
        name, _, columns = line.partition(":")
        values = columns.split()
        found[name.strip()] = (int(values[8]), int(values[0]))
    return found


def _active_ports(root: Path) -> list[Link]:
    """Active ports of RDMA devices; `counters` is None where they cannot be read."""
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" not in (_text(port / "state") or ""):
            continue
        rate = _RATE.search((_text(port / "rate") or "").replace("Gb/sec", "Gb/s"))
        line_rate = float(rate[1]) * 1e9 / 8 if rate else None
        found.append(Link(_port_name(port), "adapter", *_port_counters(port), line_rate))
    return found


def _port_name(port: Path) -> str:
    return f"{port.parent.parent.name}/{port.name}"


def _port_counters(port: Path) -> tuple[tuple[Path, Path] | None, int]:
    """Files of sent and received data with their unit in bytes; no files if they cannot be read."""
    for folder, names, unit in (
        ("counters", ("port_xmit_data", "port_rcv_data"), _DATA_UNIT_BYTES),
        ("hw_counters", ("tx_bytes", "rx_bytes"), 1),  # EFA
    ):
        files = (port / folder / names[0], port / folder / names[1])
        if _counts(files) is not None:
            return files, unit
    return None, _DATA_UNIT_BYTES


def _adapter_and_port(link: Link) -> tuple[str, int | None]:
    name, _, port = link.name.partition("/")
    return name, int(port) if port.isdecimal() else None


def _expected_ports(adapters: Sequence[Link], environ: Mapping[str, str]) -> set[str]:
    """Names of the ports that NCCL should use, also of those without counters here; empty for TCP.

    Without an agent, such as under torchrun by hand, they are those with the highest rate that NCCL_IB_HCA
    permits.
    """
    if (named := environ.get(ADAPTERS)) is not None:
        return set(named.split(",")) - {""}
    if environ.get("NCCL_IB_DISABLE", "0") != "0":
        adapters = [link for link in adapters if link.unit_bytes != _DATA_UNIT_BYTES]  # EFA goes on
    permitted = parse_names(environ.get("NCCL_IB_HCA", ""))
    rates = {
        link.name: link.line_rate_bytes_per_s or 0.0
        for link in adapters
        if permitted.permits(*_adapter_and_port(link))
    }
    return {name for name, rate in rates.items() if rate == max(rates.values())}


def _expects_interface(name: str, backend: str | None, environ: Mapping[str, str]) -> bool:
    if backend == "nccl":
        given = environ.get("NCCL_SOCKET_IFNAME", "")
        return bool(given) and permits(given, name)
    return name in environ.get("GLOO_SOCKET_IFNAME", "").split(",")


def _is_stacked(root: Path, name: str) -> bool:
    return any((root / "sys/class/net" / name).glob("lower_*"))


def _interface_rate(root: Path, name: str) -> float | None:
    """Bytes per second in one direction; None of virtual interfaces, whose speed is a constant."""
    folder = root / "sys/class/net" / name
    speed = _text(folder / "speed")
    has_device = (folder / "device").exists()
    return int(speed) * 1e6 / 8 if has_device and speed and speed.isdigit() and int(speed) else None


def _counts(files: tuple[Path, Path]) -> tuple[int, int] | None:
    try:
        return int(files[0].read_text()), int(files[1].read_text())
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # also EINVAL: the speed of an interface that is down
        return None
