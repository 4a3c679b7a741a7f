"""Lint of variables that name interfaces and adapters, against those of a node."""

from __future__ import annotations

from collections.abc import Iterator

from disttrain.errors import nearest
from disttrain.records.nccl_names import parse_names
from jobs.fabric.derive import faster_interfaces, named_interfaces, needs_fast_tcp
from jobs.fabric.description import AdapterKind, Fabric
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext


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
    if nccl.removeprefix("=").split(",")[0] == "lo":
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
    """Adapters that are not there, and prefixes that name more than they seem to."""
    value = context.value("NCCL_IB_HCA")
    if value is None or context.fabric is None:
        return
    names = [each.name for each in context.fabric.adapters if each.kind is AdapterKind.VERBS]
    for entry in parse_names(value).entries:
        named = [name for name in names if entry.matches(name)]
        if not named and names:
            yield context.finding(
                FindingSeverity.ERROR if entry.is_exact else FindingSeverity.WARNING,
                FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"the node has no adapter {entry.name!r}; it has {', '.join(names)}",
            )  # fmt: skip
        elif not entry.is_exact and entry.name in names and len(named) > 1:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"{entry.name} is a prefix, and also names "
                f"{', '.join(name for name in named if name != entry.name)}; begin the list with =",
            )  # fmt: skip
