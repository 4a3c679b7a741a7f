"""Choice of a TCP network that is faster than the route by host names and that all nodes share: pure.

Each node offers the networks of its faster interfaces. Names of interfaces may differ between nodes; the
network identifies those that belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.fabric.derive import faster_interfaces, needs_fast_tcp
from jobs.fabric.description import Fabric, Interface

_ETHERNET, _IPOIB = 1, 32
_NAMES = frozenset({"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})


@dataclass(frozen=True)
class Offer:
    """One faster interface of a node."""

    interface: str
    network: str
    """IPv4, such as `10.1.0.0/16`."""
    mbit_per_s: int
    address: str
    port: int
    """Port at which the node listens during the pre-flight."""


@dataclass(frozen=True)
class Choice:
    """The offer of each host in the chosen network, or the reason that none is chosen."""

    offers: Mapping[str, Offer]
    reason: str | None = None

    @property
    def network(self) -> str | None:
        return next((each.network for each in self.offers.values()), None)

    @property
    def mbit_per_s(self) -> int:
        """Rate of the slowest chosen interface; 0 without a choice."""
        return min((each.mbit_per_s for each in self.offers.values()), default=0)


def alternatives(
    fabric: Fabric, towards_peers: str | None, gpus_per_node: int, given: Mapping[str, str]
) -> tuple[Interface, ...]:
    """Interfaces with an IPv4 network that are faster than the one towards the other nodes.

    Empty where TCP carries little, where a speed is unknown, and where the user or the site names an
    interface for gloo or NCCL.
    """
    if towards_peers is None or _NAMES & given.keys() or not needs_fast_tcp(fabric, gpus_per_node):
        return ()
    return tuple(
        each
        for each in faster_interfaces(fabric, towards_peers)
        if each.networks and each.hardware_type in (_ETHERNET, _IPOIB)
    )


def choose(offers: Mapping[str, Sequence[Offer]]) -> Choice:
    """The fastest network that each host offers once, with different addresses.

    A network is as fast as its slowest interface; of equally fast ones, the first by name is chosen.
    """
    networks = {each.network for own in offers.values() for each in own}
    complete, reasons = [], []
    for network in sorted(networks):
        inside = {host: [each for each in own if each.network == network] for host, own in offers.items()}
        odd = [host for host, own in inside.items() if len(own) != 1]
        chosen = Choice({host: own[0] for host, own in inside.items() if len(own) == 1})
        if odd:
            count = "several interfaces" if inside[odd[0]] else "no faster interface"
            verb = "has" if len(odd) == 1 else "have"
            reasons.append(f"{_hosts(odd)} {verb} {count} in {network}")
        elif len({each.address for each in chosen.offers.values()}) < len(offers):
            reasons.append(f"nodes have the same address in {network}")
        else:
            complete.append(chosen)
    if complete:
        return max(complete, key=lambda each: each.mbit_per_s)
    return Choice({}, "; ".join(reasons[:2]) or None)


def _hosts(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    return f"node{'s' * (len(hosts) > 1)} {', '.join(hosts[:4])}{more}"
