"""Lint of variables that name interfaces and adapters, against those of a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrain.errors import nearest
from disttrain.records.nccl_names import parse_names
from jobs.fabric.choose_adapters import degraded, doubtful_adapters
from jobs.fabric.derive import USER_GUIDE, adapter_list, faster_interfaces, named_interfaces, needs_fast_tcp
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Port
from jobs.fabric.expected_adapters import permitted_ports
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext
from jobs.fabric.integers import is_nonzero
from jobs.fabric.transport import has_address

_IB_HCA = f"{USER_GUIDE}#nccl-ib-hca"


def interface_names(context: LintContext) -> Iterator[Finding]:
    """Interfaces that are not there, and different ones for gloo and NCCL."""
    gloo, nccl = context.value("GLOO_SOCKET_IFNAME"), context.value("NCCL_SOCKET_IFNAME")
    if gloo is not None and gloo.startswith(("^", "=")):
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.OUT_OF_RANGE, "GLOO_SOCKET_IFNAME",
            "gloo takes plain names of interfaces, without = or ^; write the name alone",
        )  # fmt: skip
        gloo = None
    if context.fabric is None or not context.fabric.interfaces:
        return
    names = ["lo", *(each.name for each in context.fabric.interfaces)]
    for name in (gloo or "").split(","):
        if name and name not in names:
            yield context.finding(
                FindingSeverity.ERROR, FindingKind.CONFLICT, "GLOO_SOCKET_IFNAME",
                f"the node has no interface {name!r}, so gloo fails; it has {', '.join(names)}"
                f"{nearest(name, names)}",
            )  # fmt: skip
            return
    if nccl is not None:
        yield from _of_nccl(context, context.fabric, nccl, gloo)


def _of_nccl(context: LintContext, fabric: Fabric, nccl: str, gloo: str | None) -> Iterator[Finding]:
    chosen = named_interfaces(nccl, fabric)
    listed = parse_names(nccl)
    if not listed.excludes and any(entry.name == "lo" for entry in listed.entries[:1]):
        chosen = ["lo"]
    if not chosen:
        up = [each for each in fabric.interfaces if each.is_up]
        names = [each.name for each in up if not each.is_virtual] or [each.name for each in up]
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_SOCKET_IFNAME",
            f"it selects none of the node's interfaces, so NCCL fails; write = and one of {', '.join(names)}",
        )  # fmt: skip
    elif gloo and gloo.split(",")[0] not in chosen:
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.CONFLICT, "GLOO_SOCKET_IFNAME",
            f"gloo uses {gloo}, NCCL {', '.join(chosen)}; name the same interface in both",
        )  # fmt: skip


def slow_interface(context: LintContext) -> Iterator[Finding]:
    """A node with a faster interface than the one that gloo uses, on networks where TCP should be fast."""
    name, fabric = context.value("GLOO_SOCKET_IFNAME"), context.fabric
    if name is None or fabric is None or context.nodes == 1 or not needs_fast_tcp(fabric, len(fabric.gpus)):
        return
    faster = faster_interfaces(fabric, name)
    speed = max((each.speed_mbit_per_s or 0 for each in faster), default=0)
    names = [each.name for each in faster if each.speed_mbit_per_s == speed]
    if names:
        verbs = ("is", "it connects") if len(names) == 1 else ("are", "they connect")
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "GLOO_SOCKET_IFNAME",
            f"{', '.join(names)} {verbs[0]} faster ({speed / 1000:g} Gbit/s); if {verbs[1]} all nodes, set "
            f"GLOO_SOCKET_IFNAME={names[0]} and NCCL_SOCKET_IFNAME=={','.join(names)} in the profile",
        )  # fmt: skip


def adapter_names(context: LintContext) -> Iterator[Finding]:
    """A list that leaves NCCL no adapter for computing; adapters that are not there, and prefixes that name
    more than they seem to."""
    value, fabric = context.value("NCCL_IB_HCA"), context.fabric
    if value is None or fabric is None or fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE):
        return
    is_disabled = is_nonzero(context.value("NCCL_IB_DISABLE"))
    if context.nodes == 1 or is_disabled or (context.value("NCCL_NET") or "").casefold() == "socket":
        return  # NCCL does not use the list
    found = _of_whole_list(context, fabric, value)
    if found is not None:
        yield found
        return
    if "NCCL_IB_HCA" not in context.derived:
        yield from _of_parts(context, fabric, value)
    names = [each.name for each in fabric.adapters if each.kind is AdapterKind.VERBS]
    for entry in parse_names(value).entries:
        named = [name for name in names if entry.matches(name)]
        if not named:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"the node has no adapter {entry.name!r}; it has {', '.join(names)}"
                f"{nearest(entry.name, names)}", _IB_HCA,
            )  # fmt: skip
        elif not entry.is_exact and entry.name in names and len(named) > 1:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"{entry.name} is a prefix, and also names "
                f"{', '.join(name for name in named if name != entry.name)}; begin the list with =", _IB_HCA,
            )  # fmt: skip


def _of_whole_list(context: LintContext, fabric: Fabric, value: str) -> Finding | None:
    """The finding where the list as a whole permits no active port, or none of an adapter for computing."""
    adapters = [each for each in fabric.adapters if each.kind is AdapterKind.VERBS]
    permitted = _permitted(adapters, value)
    active = _active(permitted)
    compute = [each for each in adapters if each.for_compute]
    if any(each.for_compute for each in active) or (active and not compute):
        return None
    severity, kind = FindingSeverity.ERROR, FindingKind.CONFLICT
    if active:
        severity, kind = FindingSeverity.WARNING, FindingKind.FALLBACK
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in active[:4])
        fact = f"it permits only adapters that were not chosen for computing ({reasons})"
    else:
        ends = "NCCL fails" if (context.value("NCCL_NET") or "").casefold() == "ib" else "NCCL uses TCP"
        states = [f"{each.name}:{port.number} is {port.state}" for each, ports in permitted for port in ports]
        why = f"only ports that are not active ({', '.join(states[:4])})" if states else _no_adapter(adapters)
        fact = f"it permits {why}, so {ends}"
    right = compute or [each for each in adapters if each.active_port]
    return context.finding(severity, kind, "NCCL_IB_HCA", f"{fact}; set {adapter_list(right)}", _IB_HCA)


def _permitted(adapters: Sequence[Adapter], value: str) -> list[tuple[Adapter, tuple[Port, ...]]]:
    settings = {"NCCL_IB_HCA": value}
    return [(each, ports) for each in adapters if (ports := permitted_ports(each, settings))]


def _active(permitted: Sequence[tuple[Adapter, tuple[Port, ...]]]) -> list[Adapter]:
    return [each for each, ports in permitted if any(port.is_active for port in ports)]


def _of_parts(context: LintContext, fabric: Fabric, value: str) -> Iterator[Finding]:
    """Adapters for computing that a list leaves out, and others that it permits besides."""
    active = _active(_permitted([each for each in fabric.adapters if each.kind is AdapterKind.VERBS], value))
    compute = [each for each in fabric.compute_adapters if each.kind is AdapterKind.VERBS]
    expected = [each for each in compute if each in active or not _may_be_left_out(context, fabric, each)]
    left_out = [each.name for each in expected if each not in active]
    others = [each for each in active if not each.for_compute]
    if left_out and fabric.gpus:
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "NCCL_IB_HCA",
            f"it leaves out {', '.join(left_out)}, so NCCL uses {len(expected) - len(left_out)} of "
            f"{len(expected)} adapters for computing; set {adapter_list(expected)}, unless the job has few "
            "GPUs on a node or these adapters are out of service", _IB_HCA,
        )  # fmt: skip
    if others and compute:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in others[:4])
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "NCCL_IB_HCA",
            f"it also permits adapters that were not chosen for computing ({reasons}); set "
            f"{adapter_list(expected)}", _IB_HCA,
        )  # fmt: skip


def _may_be_left_out(context: LintContext, fabric: Fabric, adapter: Adapter) -> bool:
    """Whether there is a reason to leave an adapter for computing out of a list: a link at part of its rate,
    storage, or the lack of the address that the job chooses.

    One profile serves all nodes, so a defect of one node is no reason to change it.
    """
    return (
        degraded(adapter, fabric.compute_adapters) is not None
        or adapter in doubtful_adapters(fabric)
        or not has_address(adapter, context.value("NCCL_IB_GID_INDEX"))
    )


def _no_adapter(adapters: Sequence[Adapter]) -> str:
    return f"none of the node's adapters {', '.join(each.name for each in adapters)}"
