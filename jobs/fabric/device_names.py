"""Lint of variables that name interfaces and adapters, against those of a node."""

from __future__ import annotations

from collections.abc import Iterator

from disttrain.errors import nearest
from jobs.fabric.derive import faster_interfaces, named_interfaces
from jobs.fabric.description import AdapterKind, Fabric, FabricKind
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
        names = [each.name for each in fabric.interfaces if each.is_up]
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
    """TCP: a node with a faster interface than the one that gloo uses."""
    name, fabric = context.value("GLOO_SOCKET_IFNAME"), context.fabric
    if name is None or fabric is None or fabric.kind is not FabricKind.ETHERNET or context.nodes == 1:
        return
    faster = max(faster_interfaces(fabric, name), key=lambda each: each.speed_mbit_per_s or 0, default=None)
    if faster is not None:
        speed = (faster.speed_mbit_per_s or 0) / 1000
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "GLOO_SOCKET_IFNAME",
            f"{faster.name} is faster ({speed:g} Gbit/s); if it connects all nodes, set GLOO_SOCKET_IFNAME="
            f"{faster.name} and NCCL_SOCKET_IFNAME=={faster.name} in the profile",
        )  # fmt: skip


def adapter_names(context: LintContext) -> Iterator[Finding]:
    """Adapters that are not there, and prefixes that name more than they seem to."""
    value = context.value("NCCL_IB_HCA")
    if value is None or context.fabric is None:
        return
    names = [each.name for each in context.fabric.adapters if each.kind is AdapterKind.VERBS]
    exact = value.removeprefix("^").startswith("=")
    for word in value.removeprefix("^").removeprefix("=").split(","):
        wanted = word.split(":")[0]
        named = [name for name in names if (name == wanted if exact else name.startswith(wanted))]
        if not named and names:
            yield context.finding(
                FindingSeverity.ERROR if exact else FindingSeverity.WARNING,
                FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"the node has no adapter {wanted!r}; it has {', '.join(names)}",
            )  # fmt: skip
        elif not exact and wanted in names and len(named) > 1:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA",
                f"{wanted} is a prefix, and also names {', '.join(n for n in named if n != wanted)}; "
                "begin the list with =",
            )  # fmt: skip
