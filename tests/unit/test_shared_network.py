"""The faster TCP network that all nodes share, from the offers of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.shared_network import Offer, alternatives, choose


def offer(network: str = "10.1.0.0/16", host: int = 1, gbit: int = 100, interface: str = "eth1") -> Offer:
    return Offer(interface, network, 1000 * gbit, network.replace("0.0/16", f"0.{host}"), 4000)


def test_a_network_of_all_nodes_is_chosen_whatever_the_names_of_its_interfaces() -> None:
    choice = choose({"a": [offer(host=1)], "b": [offer(host=2, interface="ens4")]})
    assert (choice.network, choice.mbit_per_s, choice.reason) == ("10.1.0.0/16", 100_000, None)
    assert [each.interface for each in choice.offers.values()] == ["eth1", "ens4"]


def test_a_network_is_as_fast_as_its_slowest_interface() -> None:
    fast = [offer("10.2.0.0/16", host, gbit) for host, gbit in ((1, 200), (2, 25))]
    choice = choose({"a": [offer(host=1), fast[0]], "b": [offer(host=2), fast[1]]})
    assert choice.network == "10.1.0.0/16"


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ({"a": [offer()], "b": []}, "node b has no faster interface in 10.1.0.0/16"),
        (
            {"a": [offer()], "b": [offer(host=2), offer(host=3, interface="eth2")]},
            "node b has several interfaces in 10.1.0.0/16",
        ),
        ({"a": [offer()], "b": [offer()]}, "nodes have the same address in 10.1.0.0/16"),
        ({"a": [offer()], "b": [], "c": []}, "nodes b, c have no faster interface in 10.1.0.0/16"),
        ({"a": [], "b": []}, None),
    ],
)
def test_without_certainty_none_is_chosen(offers: dict[str, list[Offer]], reason: str | None) -> None:
    choice = choose(offers)
    assert (choice.network, choice.offers, choice.reason) == (None, {}, reason)


def test_alternatives_are_faster_than_the_route(fabric_of: Callable[[str], Fabric]) -> None:
    fabric = fabric_of("ethernet_two")
    (eth1,) = alternatives(fabric, "eth0", 1, {})
    assert (eth1.name, eth1.networks) == ("eth1", ("10.1.0.0/16",))
    assert alternatives(fabric, "eth1", 1, {}) == ()
    assert alternatives(fabric, None, 1, {}) == ()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        assert alternatives(fabric, "eth0", 1, {name: "eth0"}) == (), "the user and the site win"


def test_nccl_over_rdma_needs_no_faster_interface_and_gloo_does(fabric_of: Callable[[str], Fabric]) -> None:
    fabric = replace(fabric_of("ethernet_two"), kind=FabricKind.INFINIBAND)
    assert alternatives(fabric, "eth0", 1, {}) == ()
    assert [each.name for each in alternatives(fabric, "eth0", 0, {})] == ["eth1"]


def test_the_interfaces_of_slingshot_adapters_are_alternatives(
    fabric_of: Callable[[str], Fabric],
) -> None:
    found = alternatives(fabric_of("cxi"), "nmn0", 4, {})
    assert [each.name for each in found] == ["hsn0", "hsn1", "hsn2", "hsn3"]
    assert {each.networks for each in found} == {("172.28.0.0/16",)}


def test_interfaces_of_unknown_speed_or_without_a_network_are_none(
    fabric_of: Callable[[str], Fabric],
) -> None:
    fabric = fabric_of("ethernet_two")
    eth0, eth1 = fabric.interfaces
    for interfaces in (
        (eth0, replace(eth1, networks=())),
        (eth0, replace(eth1, state="down")),
        (eth0, replace(eth1, speed_mbit_per_s=None)),
        (replace(eth0, speed_mbit_per_s=None), eth1),
        (eth0, replace(eth1, hardware_type=65534)),  # a tunnel
    ):
        assert alternatives(replace(fabric, interfaces=interfaces), "eth0", 1, {}) == ()
