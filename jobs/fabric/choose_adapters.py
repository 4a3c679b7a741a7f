"""Choice of the adapters for computing, with a reason for each; those that NCCL of a run should use. Pure.

One family of adapters carries the traffic of training: Slingshot, else EFA, else InfiniBand, else RoCE.
Within the family, the adapters at the most frequent rate are chosen; beside GPUs, an adapter counts at the
highest rate of its model, and degraded ones are left out only if the others carry at least as much without
them. Where each GPU shares a PCIe switch with one of the chosen, the others are for storage or management.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from disttrain.records.nccl_names import permits
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Gpu, Interface, Port
from jobs.fabric.kernel_files import NEAR, PATHS, pci_path
from jobs.fabric.registry import is_nonzero

_NAMES = {
    FabricKind.SLINGSHOT: "Slingshot",
    FabricKind.EFA: "EFA",
    FabricKind.INFINIBAND: "InfiniBand",
    FabricKind.ROCE: "RoCE",
}
_PORT_STATES = {
    "DOWN": "check the cable and the switch port",
    "INIT": "no subnet manager has configured it",
    "ARMED": "the subnet manager has not activated it",
}


def choose_adapters(
    adapters: Sequence[Adapter], interfaces: Sequence[Interface], gpus: Sequence[Gpu]
) -> tuple[FabricKind, tuple[Adapter, ...]]:
    """The kind of the fabric, and the adapters in the given order with `for_compute` and `reason`."""
    reasons = {each.name: _defect(each, interfaces) or "" for each in adapters}
    usable = [each for each in adapters if not reasons[each.name]]
    kind = next((kind for kind in _NAMES if kind in map(_kind, usable)), None)
    if kind is None:
        up = any(each.is_up and not each.is_virtual for each in interfaces)
        chosen = tuple(replace(each, reason=reasons[each.name]) for each in adapters)
        return FabricKind.ETHERNET if up else FabricKind.NONE, chosen
    family = [each for each in usable if _kind(each) == kind]
    rate, fast = _at_usual_rate(family, gpus)
    kept = fast
    if kind == FabricKind.ROCE:  # without the default route, unless each has it or only one is there
        kept = [each for each in fast if _default_interface(each, interfaces) is None] or fast
    near = [each for each in kept if nearest_gpus(each, gpus)[0] in NEAR]
    # An adapter that is down keeps its place: the other GPUs still have theirs.
    if not near or not _covers([each for each in adapters if each.kind == family[0].kind], gpus):
        near = kept
    for each in usable:
        if each not in family:
            reasons[each.name] = f"{_NAMES[_kind(each) or kind]} beside {_NAMES[kind]}: storage or management"
        elif each not in fast:
            reasons[each.name] = _other_rate(each, rate, near)
        elif each not in kept:
            default = _default_interface(each, interfaces)
            reasons[each.name] = f"its interface {default} has the default route: management"
        elif each not in near:
            text = "no GPU below its PCIe switch, unlike others at its rate: storage or management"
            reasons[each.name] = text
        else:
            reasons[each.name] = "; ".join(filter(None, [_merit(each, kind, gpus), degraded(each, near)]))
    chosen = tuple(replace(each, for_compute=each in near, reason=reasons[each.name]) for each in adapters)
    return kind, chosen


def nearest_gpus(adapter: Adapter, gpus: Sequence[Gpu]) -> tuple[str | None, tuple[str, ...]]:
    """The shortest path from an adapter to a GPU, and the PCI addresses of the GPUs at that distance."""
    if adapter.pci is None or not gpus:
        return None, ()
    paths = {gpu.pci.address: pci_path(adapter.pci, gpu.pci) for gpu in gpus}
    best = min(paths.values(), key=PATHS.index)
    return best, tuple(address for address, path in paths.items() if path == best)


def _kind(adapter: Adapter) -> FabricKind | None:
    if adapter.kind == AdapterKind.CXI:
        return FabricKind.SLINGSHOT
    if adapter.kind == AdapterKind.EFA:
        return FabricKind.EFA
    layer = adapter.active_port.link_layer if adapter.active_port else None
    return {"InfiniBand": FabricKind.INFINIBAND, "Ethernet": FabricKind.ROCE}.get(layer or "")


def _defect(adapter: Adapter, interfaces: Sequence[Interface]) -> str | None:
    """Reason that an adapter cannot carry traffic at all; None for a usable one."""
    if adapter.pci is None:
        return "no PCI device: software RDMA"
    if not adapter.ports:
        return "no port"
    if adapter.active_port is None:
        port = adapter.ports[0]
        physical = f" ({port.physical_state})" if port.physical_state else ""
        advice = _PORT_STATES.get(port.state or "", "not active")
        return f"port {port.number} is {port.state or 'in an unknown state'}{physical}: {advice}"
    # The EFA driver always reports ACTIVE; its interface, where there is one, has the state of the link.
    states = {each.name: each.state for each in interfaces}
    down = [name for name in adapter.active_port.interfaces if states.get(name) == "down"]
    if adapter.kind == AdapterKind.EFA and down:
        return f"its interface {down[0]} is down"
    if adapter.kind == AdapterKind.VERBS and _kind(adapter) is None:
        return f"link layer {adapter.active_port.link_layer or 'unknown'}: not used by NCCL"
    return None


def _at_usual_rate(family: Sequence[Adapter], gpus: Sequence[Gpu]) -> tuple[float | None, list[Adapter]]:
    """The most frequent rate, of equal counts the highest, and the adapters that count for it.

    Of adapters near GPUs, if there are any, the highest rate of each model counts: a link may be degraded.
    """
    near = [each for each in family if nearest_gpus(each, gpus)[0] in NEAR]
    full = {each.name: max([each, *_same_model(each, near)], key=_rate).rate_gbit_per_s for each in near}
    counts = Counter(full.values()) if near else Counter(each.rate_gbit_per_s for each in family)
    rate = max(counts, key=lambda each: (counts[each], each or 0))
    degraded_too = [each for each in near if full[each.name] == rate]
    least = _best_least_rate([each.rate_gbit_per_s for each in degraded_too])
    return rate, [
        each
        for each in family
        if each.rate_gbit_per_s == rate or (each in degraded_too and _rate(each) >= least)
    ]


def _best_least_rate(rates: Sequence[float | None]) -> float:
    """The lowest rate to use for the largest sum: all adapters then carry the rate of the slowest one."""
    known = [rate for rate in rates if rate is not None]
    return max(known, key=lambda least: (least * sum(rate >= least for rate in known), least), default=0.0)


def _rate(adapter: Adapter) -> float:
    return adapter.rate_gbit_per_s or 0.0


def _same_model(adapter: Adapter, others: Sequence[Adapter]) -> list[Adapter]:
    """Those of the same board and PCI device."""
    device = adapter.pci.device if adapter.pci else None
    alike = [each for each in others if device and each.pci and each.pci.device == device]
    return [each for each in alike if each.board == adapter.board]


def degraded(adapter: Adapter, others: Sequence[Adapter]) -> str | None:
    """The rate of an adapter that is slower than another of its model; None of others."""
    own, port = adapter.rate_gbit_per_s, adapter.active_port
    best = max(_same_model(adapter, others), key=_rate, default=None)
    rate = best.rate_gbit_per_s if best else None
    if own is None or rate is None or own >= rate or port is None:
        return None
    usual = best.active_port.lanes if best and best.active_port else None
    narrow = port.lanes is not None and usual is not None and port.lanes < usual
    lanes = f" on {port.lanes} of {usual} lanes" if narrow else ""
    return f"degraded: {own:g} Gbit/s{lanes}, where the same model reaches {rate:g} Gbit/s"


def _other_rate(adapter: Adapter, rate: float | None, chosen: Sequence[Adapter]) -> str:
    own = adapter.rate_gbit_per_s
    if own is None or rate is None:
        return "its rate is unknown, unlike that of others"
    relation = "slower" if own < rate else "faster"
    storage = f"{own:g} Gbit/s, {relation} than the {rate:g} Gbit/s of most: storage or management"
    return degraded(adapter, chosen) or storage


def _default_interface(adapter: Adapter, interfaces: Sequence[Interface]) -> str | None:
    """The interface on this adapter that has the default route, also as a member of a bond."""
    default = next((each for each in interfaces if each.is_default_route), None)
    if default is None:
        return None
    own = {name for port in adapter.ports for name in port.interfaces}
    return default.name if own & {default.name, *default.members} else None


def _covers(adapters: Sequence[Adapter], gpus: Sequence[Gpu]) -> bool:
    """Whether each GPU shares a PCIe switch with one of the adapters."""
    return bool(gpus) and all(
        any(each.pci and pci_path(each.pci, gpu.pci) in NEAR for each in adapters) for gpu in gpus
    )


def _merit(adapter: Adapter, kind: FabricKind, gpus: Sequence[Gpu]) -> str:
    rate = adapter.rate_gbit_per_s
    merit = f"{_NAMES[kind]}, active" + (f" at {rate:g} Gbit/s" if rate else "")
    path, near = nearest_gpus(adapter, gpus)
    if path in NEAR:
        merit += f", {path} to GPU {', '.join(near)}"
    elif adapter.pci and adapter.pci.numa_node is not None:
        merit += f", on NUMA node {adapter.pci.numa_node}"
    return merit


def expected_adapters(fabric: Fabric, settings: Mapping[str, str]) -> tuple[Adapter, ...]:
    """The adapters for computing that `NCCL_IB_HCA` permits, each with the ports that NCCL should use; none
    where the settings choose TCP.

    A list of the user that permits only other adapters wins over the choice of those for computing.

    `settings`: the environment of the ranks, and values of NCCL's configuration files.
    """
    if settings.get("NCCL_NET", "").lower() == "socket":
        return ()
    permitted = tuple(
        replace(each, ports=ports) for each in fabric.adapters if (ports := _ports(each, settings))
    )
    chosen = tuple(each for each in permitted if each.for_compute)
    return chosen or (permitted if settings.get("NCCL_IB_HCA") else ())


def expected_ports(fabric: Fabric, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Ports of these adapters, `adapter/port`, as the records of a run name them."""
    return tuple(
        f"{adapter.name}/{port.number}"
        for adapter in expected_adapters(fabric, settings)
        for port in adapter.ports
    )


def permitted_ports(adapter: Adapter, settings: Mapping[str, str]) -> tuple[Port, ...]:
    """Ports that the settings permit, active or not. `NCCL_IB_DISABLE` and `NCCL_IB_HCA` concern NCCL's own
    transport alone, which EFA and Slingshot do not use."""
    if adapter.kind is not AdapterKind.VERBS:
        return adapter.ports
    if is_nonzero(settings.get("NCCL_IB_DISABLE")):
        return ()
    names = settings.get("NCCL_IB_HCA", "")
    return tuple(port for port in adapter.ports if permits(names, adapter.name, port.number))


def _ports(adapter: Adapter, settings: Mapping[str, str]) -> tuple[Port, ...]:
    """Active ports that the settings permit, at the rate of the fastest of them."""
    rates = {
        port: port.rate_gbit_per_s or 0.0 for port in permitted_ports(adapter, settings) if port.is_active
    }
    return tuple(port for port, rate in rates.items() if rate == max(rates.values()))
