"""Adapters that NCCL of a run should use, for the pre-flight and for the verdict on the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from disttrain.records.nccl_names import parse_names
from jobs.fabric.description import Adapter, AdapterKind, Fabric, Port
from jobs.fabric.integers import is_nonzero


def expected_adapters(fabric: Fabric, settings: Mapping[str, str]) -> tuple[Adapter, ...]:
    """The adapters for computing that `NCCL_IB_HCA` permits, each with the ports that NCCL should use; none
    where the settings choose TCP.

    A list of the user that permits only other adapters wins over the choice of those for computing.

    `settings`: the environment of the ranks, and values of NCCL's configuration files.
    """
    if settings.get("NCCL_NET", "").lower() == "socket":
        return ()
    permitted = tuple(
        dataclasses.replace(each, ports=ports)
        for each in fabric.adapters
        if (ports := _ports(each, settings))
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
    names = parse_names(settings.get("NCCL_IB_HCA", ""))
    return tuple(port for port in adapter.ports if names.permits(adapter.name, port.number))


def _ports(adapter: Adapter, settings: Mapping[str, str]) -> tuple[Port, ...]:
    """Active ports that the settings permit, at the rate of the fastest of them."""
    found = [port for port in permitted_ports(adapter, settings) if port.is_active]
    fastest = max((port.rate_gbit_per_s or 0.0 for port in found), default=0.0)
    return tuple(port for port in found if (port.rate_gbit_per_s or 0.0) == fastest)
