"""Derived variables. Those of whole nodes are in tests/golden/fabric-trees.txt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.arms.plan import suggestions
from jobs.fabric.derive import Severity, derive, named_interfaces
from jobs.fabric.description import Fabric, FabricKind, Interface, Plugin, Software
from jobs.fabric.lint import FindingSeverity, lint
from jobs.fabric.registry import holds_at, registry
from jobs.fabric.settings import Setting
from tests.support.fabric_trees import KINDS

Trees = Callable[[str], Fabric]
SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
GLOO = "GLOO_SOCKET_IFNAME"
PLUGIN = Software(nccl_plugins=(Plugin("net", "/opt/ofi/libnccl-net.so", is_reachable=True),))


def pair(name: str) -> dict[str, str]:
    return {GLOO: name, "NCCL_SOCKET_IFNAME": f"={name}"}


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        # gloo and NCCL use the same interface: of the route, of the user, of the default route
        ("ethernet_two", {"interface": "eth1"}, pair("eth1") | SOCKETS),
        ("ethernet_two", {"interface": "eth0", "given": {"GLOO_SOCKET_IFNAME": "eth1"}}, pair("eth1")),
        ("ethernet_two", {"interface": "eth0"}, {"NCCL_SOCKET_IFNAME": None}),  # it is the slow one
        ("hdr_mixed", {"given": {"NCCL_SOCKET_IFNAME": "=ib0"}}, pair("ib0")),
        ("hdr_mixed", {"given": {"GLOO_SOCKET_IFNAME": "ib0,ib1"}}, {"NCCL_SOCKET_IFNAME": "=ib0"}),
        # of several permitted ones, that towards the nodes
        ("hdr_mixed", {"given": {"NCCL_SOCKET_IFNAME": "^lo"}}, {GLOO: "enp226s0"}),
        ("hdr_mixed", {"interface": "ib3", "given": {"NCCL_SOCKET_IFNAME": "^lo"}}, {GLOO: "ib3"}),
        ("cpu", {"interface": "veth0"}, pair("veth0")),  # of a container: not described
        ("hdr_mixed", {"given": {"NCCL_IB_DISABLE": "1"}}, {"NCCL_IB_HCA": None}),
        ("cxi", {"nccl_version": "2.26.5"}, {"NCCL_LL128_C2C": None}),
        ("cxi", {"nccl_version": "2.27.3"}, {"NCCL_LL128_C2C": "0"}),
        ("cxi", {"software": Software()}, {"NCCL_LL128_C2C": "0", "NCCL_NET": None}),
        ("cxi", {"software": PLUGIN}, {"NCCL_NET": "AWS Libfabric"}),
        ("cxi", {"software": PLUGIN, "given": {"NCCL_NET_PLUGIN": "ofi"}}, {"NCCL_NET": None}),
        ("roce_bond", {"nccl_version": "2.20.5"}, {"NCCL_IB_GID_INDEX": "3"}),
        ("roce_bond", {"nccl_version": "2.21.5"}, {"NCCL_IB_GID_INDEX": None}),
    ],
)  # fmt: skip
def test_two_nodes(kind, arguments, expected, fabric_of):
    """Values that hold: the derived ones, and those of the user."""
    arguments, fabric = dict(arguments), fabric_of(kind)
    fabric = replace(fabric, software=arguments.pop("software", fabric.software))
    derived = {each.name: each.value for each in derive(fabric, 2, 1, **arguments)}
    values = derived | arguments.get("given", {})
    assert {name: values.get(name) for name in expected} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_one_node_needs_nothing_and_gloo_an_interface(kind, fabric_of):
    assert derive(fabric_of(kind), 1, len(fabric_of(kind).gpus)) == ()
    assert [each.name for each in derive(fabric_of(kind), 4, 0)] == [GLOO]


def test_tcp_on_clouds_is_left_to_nccl(fabric_of):
    """NCCL chooses the number of connections for interfaces of AWS, also below a bond."""
    node = fabric_of("ethernet_25g")
    eth0 = next(each for each in node.interfaces if each.name == "eth0")
    assert eth0.pci is not None
    amazon = replace(eth0, pci=replace(eth0.pci, vendor="0x1d0f"), is_default_route=False, master="bond0")
    bond = replace(eth0, name="bond0", pci=None, members=("eth0",))
    for interfaces in ((replace(amazon, is_default_route=True),), (amazon, bond)):
        names = {each.name for each in derive(replace(node, interfaces=interfaces), 2, 2)}
        assert not names & SOCKETS.keys()


def test_named_interfaces_are_up():
    states = {"eth0": "up", "eth1": "down", "eth2": "unknown", "ib0": "up"}
    found = [Interface(name, state, 1, None, None, None, None) for name, state in states.items()]
    fabric = Fabric(FabricKind.ETHERNET, interfaces=tuple(found))
    assert named_interfaces("eth", fabric) == ["eth0", "eth2"]
    assert named_interfaces("^eth", fabric) == ["ib0"]


@pytest.mark.parametrize(
    ("kind", "nodes", "gpus", "expected"),
    [
        ("ethernet_25g", 2, 4, SOCKETS.keys()),
        ("ethernet_25g", 1, 4, set()),
        ("ethernet_25g", 2, 0, set()),
        ("ndr", 2, 8, set()),
    ],
)
def test_only_variables_for_speed_are_compared_by_default(kind, nodes, gpus, expected, fabric_of):
    assert suggestions(fabric_of(kind), nodes, gpus).keys() == expected
    derived = {each.name: each for each in derive(fabric_of("cxi"), 2, 4)}
    for name in suggestions(fabric_of("cxi"), 2, 4):
        assert (derived[name].severity, derived[name].per_node) == (Severity.SPEED, False)


VERSIONS = st.none() | st.sampled_from(["2.3.5", "2.10.3", "2.20.5", "2.21.5", "2.26.2", "2.27.3", "2.30.7"])
REASONED = {"NCCL_NET_GDR_LEVEL", "NCCL_LL128_C2C", "NCCL_PROTO"}
"""Variables for debugging that are derived, each with a document that prescribes it."""


@given(
    st.data(), st.sampled_from(sorted(KINDS)), st.integers(1, 9), st.integers(0, 8), VERSIONS,
    st.sets(st.sampled_from(sorted(registry().variables))),
)  # fmt: skip
def test_derived_variables_are_known_allowed_and_justified(fabric_of, data, kind, nodes, gpus, version, mine):
    """On odd nodes: parts of the adapters and interfaces, other choices, other libraries."""
    node = fabric_of(kind)
    adapters, interfaces = (
        data.draw(st.lists(st.sampled_from(part), unique=True, max_size=4) if part else st.just([]))
        for part in (node.adapters, node.interfaces)
    )
    fabric = replace(
        node,
        kind=data.draw(st.sampled_from(FabricKind)),
        adapters=tuple(replace(each, for_compute=data.draw(st.booleans())) for each in adapters),
        interfaces=tuple(interfaces),
        software=replace(data.draw(st.sampled_from([Software(), PLUGIN])), nccl_version=version),
    )
    derived = derive(fabric, nodes, gpus, given=dict.fromkeys(mine, "mine"))
    assert len({each.name for each in derived}) == len(derived)
    for each in derived:
        variable = registry().variables[each.name]
        assert variable.accepts(each.value) or each.name.endswith("IFNAME")
        assert variable.kind == "system" or each.name in REASONED
        assert all((each.reason, each.evidence, each.source))
        if version is not None and variable.library == "nccl":
            assert variable.is_read_by(version)
            assert holds_at(version, each.since, each.until)
        assert not variable.fabrics or fabric.kind in variable.fabrics
    alone = {each.name: each.value for each in derive(fabric, nodes, gpus)}
    settings = {name: Setting(name, value, "derived") for name, value in alone.items()}
    findings = lint(settings, fabric=fabric, nodes=nodes, nccl_version=version, derived=alone)
    assert [each for each in findings if each.severity is FindingSeverity.ERROR] == []
