"""Nodes of a fabric for tests: logs of NCCL from the samples, and links with given traffic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disttrain.records.communication import LinkTraffic, NcclLog, NodeFabric
from disttrain.telemetry.network import parse

NCCL_LOGS = Path(__file__).with_name("nccl_logs")
MIB = 2**20


def nccl_log(name: str) -> NcclLog:
    return parse((NCCL_LOGS / f"{name}.log").read_text().splitlines())


def adapter(name: str, mib: float, *, expected: bool = True) -> LinkTraffic:
    """An adapter that sent and received `mib` MiB each."""
    return _link(name, "adapter", mib, expected, 50e9)


def interface(name: str, mib: float, *, expected: bool = False) -> LinkTraffic:
    return _link(name, "interface", mib, expected, None)


def _link(name: str, kind, mib: float, expected: bool, rate: float | None) -> LinkTraffic:
    amount = int(mib * MIB)
    return LinkTraffic(
        name=name, kind=kind, sent_bytes=amount, received_bytes=amount, seconds=10.0, expected=expected,
        line_rate_bytes_per_s=rate,
    )  # fmt: skip


def node(number: int, links: Sequence[LinkTraffic] = (), nccl: NcclLog | None = None, **fields) -> NodeFabric:
    expected = [link.name for link in links if link.expected and link.kind == "adapter"]
    fields = {"expected_adapters": expected, **fields}
    return NodeFabric(node=number, host=f"node{number}", links=list(links), nccl=nccl, **fields)
