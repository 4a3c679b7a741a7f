"""Record of the links between nodes."""

from __future__ import annotations

from disttrain.records.base import Record


class NodePairRate(Record):
    """Rate of data from the first rank of one node to that of another."""

    source: int
    """Node rank of the sender."""
    target: int
    bytes_per_s: float
    """Fastest of several messages, from the start of sending to the receiver's acknowledgement."""


class LinkRates(Record):
    """`links.json`: rates between neighbouring nodes, measured before the first step of an attempt.

    Nodes form a ring by node rank; each pair of neighbours is measured in both directions, and no node takes
    part in two pairs at once.
    """

    attempt: int
    backend: str
    """Backend of the process group, which carried the messages."""
    message_bytes: int
    hosts: list[str]
    """Host name of each node."""
    rates: list[NodePairRate]
