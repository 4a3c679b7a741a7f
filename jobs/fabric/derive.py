"""The variables that the network of a job needs and that its libraries do not choose by themselves.

Pure functions from a `Fabric` to `DerivedVariable`s. NCCL's defaults are right on most networks, so most
networks need little or nothing. A job of one node needs no network variable.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from disttrain.records.nccl_names import permits
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Interface, Port
from jobs.fabric.registry import holds_at, is_nonzero, registry

USER_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
GLOO_SOURCE = "https://docs.pytorch.org/docs/stable/distributed.html"

LAST_WITHOUT_GID_CHOICE = "2.20.5"
"""Last NCCL that does not choose the RoCE address by itself."""
_FAST_TCP_MBIT_PER_S = 25_000
_TUNED_VENDORS = ("0x1d0f", "0x1ae0")
"""PCI vendors AWS and Google Cloud of the interfaces for which NCCL chooses the number of TCP connections."""
_SKIPPED_BY_NCCL = ("lo", "docker*", "virbr*")
_IPV4_MAPPED = "0000:0000:0000:0000:0000:ffff:"


class Severity(StrEnum):
    """Consequence of leaving a variable out."""

    CORRECTNESS = "correctness"
    """Wrong data or a deadlock."""
    CONNECTION = "connection"
    """The job may fail, or use another network."""
    SPEED = "speed"


@dataclass(frozen=True)
class DerivedVariable:
    """One variable that a network needs."""

    name: str
    value: str
    reason: str
    evidence: str
    """Path that detection read, or a figure with its unit."""
    source: str
    """Document that recommends it."""
    since: str | None = None
    """First version of its library for which it holds; None: all."""
    until: str | None = None
    """Last such version."""
    severity: Severity = Severity.SPEED
    per_node: bool = False
    """Whether nodes may differ: names of devices. All other values have to agree on all nodes of a job."""


def derive(
    fabric: Fabric,
    nodes: int,
    gpus_per_node: int,
    nccl_version: str | None = None,
    *,
    interface: str | None = None,
    given: Mapping[str, str] | None = None,
) -> tuple[DerivedVariable, ...]:
    """The variables that ranks on a node of this fabric need; most often few or none.

    Parameters
    ----------
    gpus_per_node : 0 for a job that communicates with gloo alone
    nccl_version : such as `2.27.5`; None takes the detected one
    interface : interface by which the node reaches the others; None takes that of the default route
    given : values of the user and the site. A derived value of the same name is returned all the same;
        values that contradict a given one are left out
    """
    if nodes == 1:
        return ()
    tcp = _interface(fabric, interface, given or {})
    derived = [*_names_of_interface(fabric, tcp, gpus_per_node)]
    if gpus_per_node > 0:
        derived += [
            *_prescribed(fabric, given or {}),
            *_adapters(fabric, given or {}),
            *_address(fabric),
            *_tcp(fabric, tcp),
        ]
    version = nccl_version or fabric.software.nccl_version
    return tuple(each for each in derived if _holds(each, version))


def _holds(derived: DerivedVariable, nccl_version: str | None) -> bool:
    """Whether NCCL reads a variable, and needs it. Versions of the other libraries are not detected."""
    variable = registry().variables[derived.name]
    is_needed = holds_at(nccl_version, derived.since, derived.until) and variable.is_read_by(nccl_version)
    return variable.library != "nccl" or is_needed


def named_interfaces(value: str, fabric: Fabric) -> list[str]:
    """Interfaces that are up and that a value of `NCCL_SOCKET_IFNAME` permits."""
    return [each.name for each in fabric.interfaces if each.is_up and permits(value, each.name)]


def _interface(fabric: Fabric, towards_peers: str | None, given: Mapping[str, str]) -> Interface | None:
    """The interface for TCP: a given one, else that towards the other nodes, else the default route's.

    Of several that a given value permits, it is the one towards the other nodes, or of the default route.
    """
    default = fabric.default_interface
    usual = towards_peers or (default.name if default is not None and default.is_up else None)
    chosen = given.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or usual
    if "NCCL_SOCKET_IFNAME" in given:
        named = named_interfaces(given["NCCL_SOCKET_IFNAME"], fabric)
        chosen = usual if usual in named or not named else named[0]
    if chosen is None:
        return None
    # A virtual interface, such as a veth of a container, may be missing in the description.
    missing = Interface(chosen, "up", None, None, None, None, None)
    return next((each for each in fabric.interfaces if each.name == chosen), missing)


def _of_node(
    name: str, value: str, reason: str, evidence: str, source: str = USER_GUIDE, until: str | None = None
) -> DerivedVariable:
    """A name of a device, which may differ between nodes."""
    return DerivedVariable(
        name, value, reason, evidence, source, None, until, Severity.CONNECTION, per_node=True
    )


def _names_of_interface(
    fabric: Fabric, interface: Interface | None, gpus_per_node: int
) -> Iterator[DerivedVariable]:
    """gloo and NCCL on the same interface. NCCL's own choice is kept where there is only one."""
    if interface is None:
        return
    reason = "gloo would use the address of the host's name, which may be loopback or another network"
    yield _of_node("GLOO_SOCKET_IFNAME", interface.name, reason, interface.evidence, GLOO_SOURCE)
    others = [each.name for each in fabric.interfaces if each.is_up and _is_candidate(each, interface)]
    # where the slower interface leads to the nodes by name, NCCL should choose; the lint reports it
    is_slow = fabric.kind is FabricKind.ETHERNET and faster_interfaces(fabric, interface.name)
    if gpus_per_node > 0 and others and not is_slow:
        reason = f"the interface of gloo towards the other nodes; NCCL might choose {', '.join(others[:4])}"
        yield _of_node("NCCL_SOCKET_IFNAME", f"={interface.name}", reason, interface.evidence)


def needs_fast_tcp(fabric: Fabric, gpus_per_node: int) -> bool:
    """Whether TCP should take the fastest network: it carries gradients with gloo, and without RDMA.

    On Slingshot, HPE prescribes the adapters' own interfaces (hsn) for NCCL's connections over TCP.
    """
    return gpus_per_node == 0 or fabric.kind in (FabricKind.ETHERNET, FabricKind.SLINGSHOT)


def faster_interfaces(fabric: Fabric, name: str) -> list[Interface]:
    """Interfaces of devices that are up and faster than the named one; empty if its speed is unknown."""
    named = next((each for each in fabric.interfaces if each.name == name), None)
    speed = named.speed_mbit_per_s if named is not None else None
    # members of a bond have no address
    usable = [each for each in fabric.interfaces if each.is_up and not each.is_virtual and not each.master]
    return [each for each in usable if speed is not None and (each.speed_mbit_per_s or 0) > speed]


def _is_candidate(other: Interface, chosen: Interface) -> bool:
    """Whether NCCL might choose another interface than `chosen`. Members of a bond have no address."""
    skipped = any(fnmatch.fnmatchcase(other.name, pattern) for pattern in _SKIPPED_BY_NCCL)
    return other.name != chosen.name and other.master is None and not skipped


def _adapters(fabric: Fabric, given: Mapping[str, str]) -> Iterator[DerivedVariable]:
    """InfiniBand and RoCE: a list of adapters, only where NCCL would use others as well."""
    if fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE) or is_nonzero(
        given.get("NCCL_IB_DISABLE")
    ):
        return
    others = [
        each for each in fabric.excluded_adapters if each.kind is AdapterKind.VERBS and each.active_port
    ][:4]
    if others and (chosen := verbs_in_use(fabric)):
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in others)
        yield _of_node(
            "NCCL_IB_HCA", adapter_list(chosen),
            f"NCCL would also use adapters that were not chosen for computing ({reasons})",
            ", ".join(f"{each.evidence}: {each.rate_gbit_per_s or 0:g} Gbit/s" for each in others),
        )  # fmt: skip


def verbs_in_use(fabric: Fabric) -> list[Adapter]:
    """Adapters for computing that NCCL's own transport IB can use."""
    return [each for each in fabric.compute_adapters if each.kind is AdapterKind.VERBS and each.active_port]


def adapter_list(adapters: Iterable[Adapter]) -> str:
    """The value of `NCCL_IB_HCA` that permits these adapters alone."""
    return "=" + ",".join(map(_ports, adapters))


def _ports(adapter: Adapter) -> str:
    """An adapter in `NCCL_IB_HCA`, with its ports where not all of them are as fast as the fastest."""
    rate = adapter.rate_gbit_per_s
    fast = [port for port in adapter.ports if port.is_active and port.rate_gbit_per_s == rate]
    if len(fast) == len(adapter.ports):
        return adapter.name
    return ",".join(f"{adapter.name}:{port.number}" for port in fast)


def _address(fabric: Fabric) -> Iterator[DerivedVariable]:
    """RoCE: the RoCE v2 address, which old versions of NCCL do not choose."""
    indices = {_routable_gid(each.active_port) for each in fabric.compute_adapters}
    index = indices.pop() if len(indices) == 1 else None
    if fabric.kind is FabricKind.ROCE and index is not None:
        adapter = fabric.compute_adapters[0]
        port = adapter.active_port
        yield _of_node(
            "NCCL_IB_GID_INDEX", str(index), "NCCL before 2.21 takes address 0, which is not RoCE v2",
            f"{adapter.evidence}/ports/{port.number if port else 1}/gid_attrs/types/{index}",
            until=LAST_WITHOUT_GID_CHOICE,
        )  # fmt: skip


def _routable_gid(port: Port | None) -> int | None:
    """Index of the first RoCE v2 address of a port that is an IPv4 address."""
    routable = (
        gid.index
        for gid in (port.gids if port else ())
        if gid.type == "RoCE v2" and gid.address.startswith(_IPV4_MAPPED)
    )
    return next(routable, None)


def _prescribed(fabric: Fabric, given: Mapping[str, str]) -> Iterator[DerivedVariable]:
    """Values that the registry has for the network of this node."""
    evidence = next((each.evidence for each in fabric.compute_adapters), f"network {fabric.kind}")
    for each in registry().prescribed:
        if fabric.features.issuperset(each.on) and each.unless_set not in given:
            of_gpu = ", GPU with NVLink-C2C" if "c2c" in each.on else ""
            yield DerivedVariable(
                each.name, each.value, each.reason, evidence + of_gpu, each.source, each.since,
                severity=Severity(each.severity),
            )  # fmt: skip


def _tcp(fabric: Fabric, interface: Interface | None) -> Iterator[DerivedVariable]:
    """Ethernet: more connections on fast links, except where NCCL chooses their number."""
    speed = (interface.speed_mbit_per_s if interface else None) or 0
    if fabric.kind is not FabricKind.ETHERNET or interface is None or speed < _FAST_TCP_MBIT_PER_S:
        return
    member = next((each for each in fabric.interfaces if each.name in interface.members), interface)
    if member.pci is not None and member.pci.vendor in _TUNED_VENDORS:
        return
    evidence = f"{interface.evidence}/speed: {speed / 1000:g} Gbit/s"
    for name, means in (("NCCL_SOCKET_NTHREADS", "thread"), ("NCCL_NSOCKS_PERTHREAD", "TCP connection")):
        yield DerivedVariable(name, "4", f"one {means} does not fill such a link", evidence, USER_GUIDE)
