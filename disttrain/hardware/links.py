"""The links of a node: RDMA ports and network interfaces, with the files of their counters.

Traffic over RDMA does not appear in the counters of an interface. TCP does not appear in those of an RDMA
port, unless it runs over IPoIB. Interfaces stacked on others (bonds, bridges, VLANs) are left out, as the
links below them count the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disttrain.records.nccl_names import permits
from disttrain.records.run_directory import ADAPTERS

_WORD_BYTES = 4
"""InfiniBand counts in words of 4 bytes (IBTA specification, PortCounters)."""
_COUNTERS = (
    ("counters/port_xmit_data", "counters/port_rcv_data", _WORD_BYTES),
    ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1),  # EFA
)
"""Files of sent and received data below the folder of a port, with their unit in bytes."""
_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A link of this node. Its name is that of an interface, or `adapter/port`."""

    name: str
    kind: str
    """`adapter` or `interface`, as in `LinkTraffic`."""
    counters: tuple[Path, ...]
    """Files of sent and received data, twice the same for an interface; none where they cannot be read."""
    unit_bytes: int
    line_rate_bytes_per_s: float | None
    expected: bool = False

    def count(self, direction: int) -> int:
        """Bytes sent (0) or received (1). Raises an exception where the link is gone."""
        text = self.counters[direction].read_text()
        if self.kind == "interface":
            [columns] = re.findall(rf"^ *{re.escape(self.name)}:(.*)", text, re.MULTILINE)
            text = columns.split()[8 - 8 * direction]
        return self.unit_bytes * int(text)


def find_links(
    backend: str | None, environ: Mapping[str, str], root: Path = Path("/")
) -> tuple[list[Link], list[str]]:
    """The active RDMA ports and the interfaces of this node, as far as their counters can be read; and the
    names of the ports that NCCL should use, also of those without a counter (Slingshot, some containers).

    NCCL is expected to use the RDMA ports that the agent of the node has chosen (`ADAPTERS`), or else the
    interfaces that NCCL_SOCKET_IFNAME permits. gloo is expected to use those of GLOO_SOCKET_IFNAME. Loopback
    counts only where it is expected.
    """
    ports = list(_active_ports(root))
    chosen = _expected_ports(ports, environ) if backend == "nccl" else set()
    links = [replace(port, expected=port.name in chosen) for port in ports if port.counters]
    variable, exactly = ("NCCL_SOCKET_IFNAME", "") if backend == "nccl" else ("GLOO_SOCKET_IFNAME", "=")
    names = environ.get(variable, "")
    table = root / "proc/self/net/dev"  # of this network namespace; `sys` may show another one
    for name in re.findall(r"^ *([^\s:]+):", _text(table), re.MULTILINE):
        folder = root / "sys/class/net" / name
        expected = not chosen and names != "" and permits(exactly + names, name)
        if (name != "lo" or expected) and not any(folder.glob("lower_*")):
            links.append(Link(name, "interface", (table, table), 1, _interface_rate(folder), expected))
    return links, sorted(chosen)


def _active_ports(root: Path) -> Iterator[Link]:
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            rate = _RATE.search(_text(port / "rate"))
            line_rate = float(rate[1]) * 1e9 / 8 if rate else None
            yield Link(f"{port.parents[1].name}/{port.name}", "adapter", *_counters(port), line_rate)


def _counters(folder: Path) -> tuple[tuple[Path, ...], int]:
    for sent, received, unit in _COUNTERS:
        files = folder / sent, folder / received
        if all(_text(file).isdigit() for file in files):
            return files, unit
    return (), _WORD_BYTES


def _expected_ports(ports: Sequence[Link], environ: Mapping[str, str]) -> set[str]:
    """Names of the ports that NCCL should use; empty for TCP.

    Without an agent, such as under torchrun by hand, they are those with the highest rate that NCCL_IB_HCA
    permits.
    """
    if (named := environ.get(ADAPTERS)) is not None:
        return set(named.split(",")) - {""}
    is_disabled = environ.get("NCCL_IB_DISABLE", "0") != "0"
    permitted = environ.get("NCCL_IB_HCA", "")
    rates = {}
    for link in ports:
        adapter, port = link.name.split("/")
        is_efa = link.unit_bytes != _WORD_BYTES  # goes on where NCCL_IB_DISABLE is set
        if permits(permitted, adapter, int(port)) and (is_efa or not is_disabled):
            rates[link.name] = link.line_rate_bytes_per_s or 0.0
    return {name for name, rate in rates.items() if rate == max(rates.values())}


def _interface_rate(folder: Path) -> float | None:
    """Bytes per second in one direction; None of virtual interfaces, whose speed is a constant."""
    speed = _text(folder / "speed")
    return int(speed) * 1e6 / 8 or None if speed.isdigit() and (folder / "device").exists() else None


def _text(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # also EINVAL: the speed of an interface that is down
        return ""
