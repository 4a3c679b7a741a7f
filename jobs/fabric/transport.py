"""Guard of the transport between nodes: `NCCL_NET`, `NCCL_NET_PLUGIN`, and `NCCL_IB_GID_INDEX` of RoCE.

Sources: NCCL (`src/plugin/net.cc`, `ncclIbGetGidIndex`), its user guide, and `nvidia_plugin_name_fixup` of
aws-ofi-nccl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrain.errors import nearest
from jobs.fabric.adapters import MOST_GIDS
from jobs.fabric.derive import LAST_WITHOUT_GID_CHOICE, PLUGIN_GUIDE, USER_GUIDE, routable_gid
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Port
from jobs.fabric.expected_adapters import permitted_ports
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext
from jobs.fabric.integers import integer_prefix
from jobs.fabric.network_plugin import (
    MissingPlugin,
    missing_named,
    missing_plugin,
    plugin_names,
    shows_libraries,
)
from jobs.fabric.registry import parse_version

PLUGIN_NETWORKS = (FabricKind.EFA, FabricKind.SLINGSHOT)
"""Networks that NCCL reaches through aws-ofi-nccl alone."""
VERBS_NETWORKS = (FabricKind.INFINIBAND, FabricKind.ROCE)
"""Networks of NCCL's own transport IB."""
_OWN_NETWORKS = ("IB", "Socket")
_LIBFABRIC_NAMES = ("AWS Libfabric", "Libfabric", "OFI")
"""Names under which aws-ofi-nccl offers its network. All versions accept the first one."""
_ROUTABLE = "RoCE v2"


def network_name(context: LintContext) -> Iterator[Finding]:
    """`NCCL_NET` that the adapters of the node do not offer, or that leaves them unused."""
    value, fabric = context.value("NCCL_NET"), context.fabric
    if value is None or fabric is None or context.nodes == 1 or not fabric.gpus:
        return
    name = value.casefold()
    if name == "socket":
        found = _unused_adapters(context, fabric)
    elif name == "ib":
        found = _without_verbs(context, fabric)
    elif name in map(str.casefold, _LIBFABRIC_NAMES):
        found = _libfabric(context, fabric)
    else:
        found = _unknown_network(context, fabric, value)
    if found is not None:
        yield found


def _right_network(fabric: Fabric) -> str:
    """The step to a value of `NCCL_NET` that fits the node."""
    if fabric.kind in PLUGIN_NETWORKS:
        return f"set {_LIBFABRIC_NAMES[0]!r}"
    return f"remove it, or set {'IB' if fabric.kind in VERBS_NETWORKS else 'Socket'}"


def _of_network(
    context: LintContext,
    severity: FindingSeverity,
    fact: str,
    step: str,
    source: str = f"{USER_GUIDE}#nccl-net",
) -> Finding:
    is_slow = severity is FindingSeverity.WARNING
    kind = FindingKind.FALLBACK if is_slow else FindingKind.CONFLICT
    return context.finding(severity, kind, "NCCL_NET", f"{fact}; {step}", source)


def _unused_adapters(context: LintContext, fabric: Fabric) -> Finding | None:
    used = fabric.compute_adapters
    if not used:
        return None
    rate = sum(each.rate_gbit_per_s or 0 for each in used)
    amount = f"{len(used)} adapter{'s' * (len(used) > 1)}" + (f" with {rate:g} Gbit/s" if rate else "")
    fact = f"NCCL uses TCP, although the node has {amount} of {fabric.kind}"
    return _of_network(context, FindingSeverity.WARNING, fact, _right_network(fabric))


def _without_verbs(context: LintContext, fabric: Fabric) -> Finding | None:
    active = [each.name for each in fabric.adapters if each.kind is AdapterKind.VERBS and each.active_port]
    if not active:
        fact = f"no port of InfiniBand or RoCE is active, so NCCL fails: the network is {fabric.kind}"
        return _of_network(context, FindingSeverity.ERROR, fact, _right_network(fabric))
    if fabric.kind in PLUGIN_NETWORKS:
        fact = f"NCCL uses {', '.join(active)} instead of the adapters of {fabric.kind}"
        return _of_network(context, FindingSeverity.WARNING, fact, _right_network(fabric))
    return None


def _libfabric(context: LintContext, fabric: Fabric) -> Finding | None:
    missing = _missing(context, fabric)
    if missing is not None:
        step = missing.remedy if fabric.kind in PLUGIN_NETWORKS else _right_network(fabric)
        fact = f"{missing.fact}, so NCCL fails"
        return _of_network(context, FindingSeverity.ERROR, fact, step, PLUGIN_GUIDE)
    if fabric.kind not in PLUGIN_NETWORKS:
        fact = f"the node has no adapter of EFA or Slingshot: its network is {fabric.kind}"
        return _of_network(context, FindingSeverity.WARNING, fact, _right_network(fabric), PLUGIN_GUIDE)
    return None


def _unknown_network(context: LintContext, fabric: Fabric, value: str) -> Finding | None:
    """A name that only a plugin may offer, on a node without one."""
    if _missing(context, fabric) is None:
        return None
    has = " and ".join(_OWN_NETWORKS)
    fact = f"no plugin is found that may have a network of this name, so NCCL fails: it has {has}"
    close = nearest(value, [*_OWN_NETWORKS, *_LIBFABRIC_NAMES])
    return _of_network(context, FindingSeverity.ERROR, fact, f"{_right_network(fabric)}{close}")


def _missing(context: LintContext, fabric: Fabric) -> MissingPlugin | None:
    """The reason for which NCCL loads no plugin; None also where detection cannot see one."""
    is_path = "/" in (context.value("NCCL_NET_PLUGIN") or "")
    return None if is_path or not shows_libraries(fabric.software) else missing_plugin(fabric.software)


def network_plugin(context: LintContext) -> Iterator[Finding]:
    """`NCCL_NET_PLUGIN` that NCCL does not find, or that excludes the plugin that the network needs."""
    value, fabric = context.value("NCCL_NET_PLUGIN"), context.fabric
    if not value or fabric is None or context.nodes == 1 or not fabric.gpus or "/" in value:
        return
    names = plugin_names(value)
    missing = missing_named(fabric.software, names)
    if missing is not None and (names != ["none"] or fabric.kind in PLUGIN_NETWORKS):
        used = "its own transport IB" if fabric.kind in VERBS_NETWORKS else "TCP"
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "NCCL_NET_PLUGIN",
            f"{missing.fact}, so NCCL uses {used}; {missing.remedy}", f"{USER_GUIDE}#nccl-net-plugin",
        )  # fmt: skip


def roce_address(context: LintContext) -> Iterator[Finding]:
    """`NCCL_IB_GID_INDEX` that a permitted port lacks, or that is not RoCE v2 where the port has RoCE v2."""
    index, fabric = _index(context.value("NCCL_IB_GID_INDEX")), context.fabric
    if index is None or fabric is None or context.nodes == 1 or index >= MOST_GIDS:
        return
    ports = _ethernet_ports(context, fabric)
    lacking = [each for each in ports if not any(gid.index == index for gid in each[1].gids)]
    older = [
        (adapter, gid)
        for adapter, port in ports
        for gid in port.gids
        if gid.index == index and gid.type != _ROUTABLE and any(each.type == _ROUTABLE for each in port.gids)
    ]
    if lacking:
        adapter, port = lacking[0]
        has = ", ".join(f"{gid.index} ({gid.type})" for gid in port.gids)
        severity = FindingSeverity.ERROR
        fact = f"port {port.number} of {adapter.name} has no such address, so connections fail: it has {has}"
    elif older:
        adapter, gid = older[0]
        severity = FindingSeverity.WARNING
        fact = f"it is an address of {gid.type} on {adapter.name}, which routers do not forward"
    else:
        return
    step = _right_index(context, ports)
    yield context.finding(
        severity,
        FindingKind.CONFLICT,
        "NCCL_IB_GID_INDEX",
        f"{fact}; {step}",
        f"{USER_GUIDE}#nccl-ib-gid-index",
    )


def has_address(adapter: Adapter, index: str | None) -> bool:
    """Whether a port has RoCE v2 at a value of `NCCL_IB_GID_INDEX`; True without such a value, and for an
    adapter without addresses."""
    number, gids = _index(index), [gid for port in adapter.ports for gid in port.gids]
    if number is None or not gids:
        return True
    return any(gid.index == number and gid.type == _ROUTABLE for gid in gids)


def _index(value: str | None) -> int | None:
    found = integer_prefix(value or "")
    return found[0] if found is not None and found[0] >= 0 else None


def _ethernet_ports(context: LintContext, fabric: Fabric) -> list[tuple[Adapter, Port]]:
    """Active RoCE ports with addresses that the settings permit; of adapters for computing, as the derived
    `NCCL_IB_HCA` has them, where that variable is not set."""
    settings = {name: value for name in context.settings if (value := context.value(name)) is not None}
    return [
        (adapter, port)
        for adapter in (fabric.adapters if "NCCL_IB_HCA" in context.settings else fabric.compute_adapters)
        for port in permitted_ports(adapter, settings)
        if port.is_active and port.link_layer == "Ethernet" and port.gids
    ]


def _right_index(context: LintContext, ports: Sequence[tuple[Adapter, Port]]) -> str:
    """The step to a right index: the choice of NCCL newer than 2.20.5, or the common one of the ports."""
    indices = {adapter.name: routable_gid(port) for adapter, port in ports}
    steps = []
    version, last = context.nccl_version, LAST_WITHOUT_GID_CHOICE
    if version is None or parse_version(version) > parse_version(last):
        steps.append(f"remove it, as NCCL newer than {last} chooses")
    common = next(iter(indices.values())) if len(set(indices.values())) == 1 else None
    if common is not None:
        steps.append(f"set {common} (RoCE v2, IPv4)")
    if not steps:
        known = ", ".join(f"{name} {index}" for name, index in indices.items() if index is not None)
        steps.append(f"name adapters with one index of RoCE v2 in NCCL_IB_HCA ({known or 'none is known'})")
    return ", or ".join(steps)


TRANSPORT = (network_name, network_plugin, roce_address)
