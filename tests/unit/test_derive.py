"""Derived variables of each kind of network: most need nothing, and each value is allowed and justified."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.fabric.derive import DerivedVariable, Severity, derive, named_interfaces
from jobs.fabric.description import (
    Adapter,
    AdapterKind,
    Fabric,
    FabricKind,
    Gid,
    Gpu,
    Interface,
    PciDevice,
    Plugin,
    Port,
    Software,
)
from jobs.fabric.detect import detect
from jobs.fabric.lint import FindingSeverity, lint
from jobs.fabric.registry import holds_at, registry
from jobs.fabric.settings import Setting
from tests.support.fabric_trees import KINDS, tree

SLINGSHOT = {
    "FI_MR_CACHE_MONITOR": "userfaultfd",
    "FI_CXI_DISABLE_HOST_REGISTER": "1",
    "FI_CXI_DEFAULT_CQ_SIZE": "131072",
    "FI_CXI_RX_MATCH_MODE": "hybrid",
    "FI_CXI_RDZV_EAGER_SIZE": "0",
    "FI_CXI_RDZV_THRESHOLD": "0",
    "FI_CXI_RDZV_GET_MIN": "0",
    "FI_CXI_DEFAULT_TX_SIZE": "2048",
    "NCCL_CROSS_NIC": "1",
    "NCCL_NET_GDR_LEVEL": "PHB",
}
COMPUTE = "=" + ",".join(f"mlx5_{index}" for index in range(8))
EXPECTED = {
    "ndr": {"GLOO_SOCKET_IFNAME": "eth0"},
    "dead_hca": {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_4,mlx5_5,mlx5_7",  # 3 is down, 6 at half its rate
    },
    "all_down": {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    "hdr_mixed": {
        "GLOO_SOCKET_IFNAME": "enp226s0", "NCCL_SOCKET_IFNAME": "=enp226s0", "NCCL_IB_HCA": COMPUTE,
    },
    "roce_bond": {
        "GLOO_SOCKET_IFNAME": "bond0", "NCCL_SOCKET_IFNAME": "=bond0",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3", "NCCL_IB_GID_INDEX": "3",
    },
    "efa_p5": {"GLOO_SOCKET_IFNAME": "enp65s0"},
    "cxi": {"GLOO_SOCKET_IFNAME": "nmn0", "NCCL_SOCKET_IFNAME": "=nmn0", **SLINGSHOT},
    "ethernet_25g": {
        "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4",
    },
    "ethernet_two": {"GLOO_SOCKET_IFNAME": "eth0"},  # the faster one only after a look at the other nodes
    "nvlink": {"GLOO_SOCKET_IFNAME": "eth0"},
    "pcie": {"GLOO_SOCKET_IFNAME": "eth0"},
    "cpu": {"GLOO_SOCKET_IFNAME": "eth0"},
}  # fmt: skip


@pytest.fixture(scope="module")
def fabrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fabric]:
    return {kind: detect(tree(kind, tmp_path_factory.mktemp(kind))) for kind in KINDS}


def values(found: tuple[DerivedVariable, ...]) -> dict[str, str]:
    return {each.name: each.value for each in found}


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes(fabrics: dict[str, Fabric], kind: str) -> None:
    fabric = fabrics[kind]
    assert values(derive(fabric, 2, len(fabric.gpus))) == EXPECTED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_one_node_needs_nothing(fabrics: dict[str, Fabric], kind: str) -> None:
    assert derive(fabrics[kind], 1, len(fabrics[kind].gpus)) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_gloo_alone_needs_an_interface_alone(fabrics: dict[str, Fabric], kind: str) -> None:
    assert values(derive(fabrics[kind], 4, 0)).keys() == {"GLOO_SOCKET_IFNAME"}


def test_the_interface_of_the_route_or_profile_is_for_gloo_and_nccl(
    fabrics: dict[str, Fabric],
) -> None:
    found = values(derive(fabrics["ethernet_two"], 2, 1, interface="eth1"))
    assert found == {
        "GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1",
        "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4",
    }  # fmt: skip
    given = {"GLOO_SOCKET_IFNAME": "eth1"}
    assert values(derive(fabrics["ethernet_two"], 2, 1, interface="eth0", given=given)) == found


def test_ll128_over_c2c_is_switched_off_in_the_versions_that_corrupt(fabrics: dict[str, Fabric]) -> None:
    for version, expected in {"2.26.5": None, "2.27.3": "0", "2.30.7": "0"}.items():
        assert values(derive(fabrics["cxi"], 2, 4, version)).get("NCCL_LL128_C2C") == expected
    unknown = replace(fabrics["cxi"], software=Software())
    (guard,) = (each for each in derive(unknown, 2, 4) if each.name == "NCCL_LL128_C2C")
    assert guard.severity is Severity.CORRECTNESS
    assert guard.since == "2.27.3"
    assert not guard.per_node, "all nodes have to agree"


def test_slingshot_never_falls_back_to_tcp_where_its_plugin_is(fabrics: dict[str, Fabric]) -> None:
    plugin = Plugin("net", "/opt/ofi/libnccl-net.so", is_reachable=True)
    fabric = replace(fabrics["cxi"], software=Software(nccl_plugins=(plugin,)))
    assert values(derive(fabric, 2, 4))["NCCL_NET"] == "AWS Libfabric"
    assert "NCCL_NET" not in values(derive(fabric, 1, 4))
    assert "NCCL_NET" not in values(derive(fabric, 2, 4, given={"NCCL_NET_PLUGIN": "ofi"}))


def test_roce_address_only_for_nccl_that_does_not_choose_it(fabrics: dict[str, Fabric]) -> None:
    assert "NCCL_IB_GID_INDEX" in values(derive(fabrics["roce_bond"], 2, 4, "2.20.5"))
    assert "NCCL_IB_GID_INDEX" not in values(derive(fabrics["roce_bond"], 2, 4, "2.21.5"))


def test_tcp_on_clouds_is_left_to_nccl(fabrics: dict[str, Fabric]) -> None:
    fabric = fabrics["ethernet_25g"]
    amazon = tuple(
        replace(each, pci=replace(each.pci, vendor="0x1d0f")) if each.pci else each
        for each in fabric.interfaces
    )
    assert "NCCL_SOCKET_NTHREADS" not in values(derive(replace(fabric, interfaces=amazon), 2, 2))


@pytest.mark.parametrize(
    ("given_values", "gloo", "nccl"),
    [
        ({"NCCL_SOCKET_IFNAME": "=ib0"}, "ib0", "=ib0"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "ib0", "=ib0"),
        ({}, "enp226s0", "=enp226s0"),
    ],
)
def test_gloo_and_nccl_use_the_same_interface(
    fabrics: dict[str, Fabric], given_values: dict[str, str], gloo: str, nccl: str
) -> None:
    """On a node with several interfaces, also where the user names one of the two."""
    derived = derive(fabrics["hdr_mixed"], 2, 8, interface="enp226s0", given=given_values)
    effective = values(derived) | given_values
    assert (effective["GLOO_SOCKET_IFNAME"], effective["NCCL_SOCKET_IFNAME"]) == (gloo, nccl)


def test_a_pattern_that_permits_several_interfaces_keeps_the_one_towards_the_nodes(
    fabrics: dict[str, Fabric],
) -> None:
    """A bridge that sorts first is permitted as well."""
    fabric = fabrics["hdr_mixed"]
    (other,) = (each for each in fabric.interfaces if each.name == "ib0")
    bridge = replace(other, name="br-1f2e", pci=None)
    fabric = replace(fabric, interfaces=(bridge, *fabric.interfaces))
    given_values = {"NCCL_SOCKET_IFNAME": "^docker,lo"}
    for interface in ("enp226s0", None):
        found = values(derive(fabric, 2, 8, interface=interface, given=given_values))
        assert found["GLOO_SOCKET_IFNAME"] == "enp226s0"
    excluded = values(derive(fabric, 2, 8, interface="enp226s0", given={"NCCL_SOCKET_IFNAME": "br-"}))
    assert excluded["GLOO_SOCKET_IFNAME"] == "br-1f2e"


def test_named_interfaces_are_up() -> None:
    states = {"eth0": "up", "eth1": "down", "eth2": "unknown", "ib0": "up"}
    found = [Interface(name, state, 1, None, None, None, None) for name, state in states.items()]
    fabric = Fabric(FabricKind.ETHERNET, interfaces=tuple(found))
    assert named_interfaces("eth", fabric) == ["eth0", "eth2"]
    assert named_interfaces("^eth", fabric) == ["ib0"]


VERSIONS = st.sampled_from(["2.3.5", "2.10.3", "2.18.5", "2.20.5", "2.21.5", "2.26.2", "2.27.3", "2.30.7"])
PCI = st.builds(PciDevice, st.just("0000:01:00.0"), vendor=st.sampled_from([None, "0x15b3", "0x1d0f"]))
PORTS = st.builds(
    Port,
    st.integers(1, 2),
    st.sampled_from(["InfiniBand", "Ethernet", None]),
    st.sampled_from(["ACTIVE", "DOWN", None]),
    st.none(),
    st.sampled_from([None, 25.0, 200.0, 400.0]),
    st.none(),
    gids=st.just((Gid(3, "0000:0000:0000:0000:0000:ffff:0a01:0207", "RoCE v2", "eth0"),)),
)
ADAPTERS = st.builds(
    Adapter,
    st.sampled_from([f"mlx5_{index}" for index in range(4)]),
    st.sampled_from(AdapterKind),
    st.none(),
    st.none(),
    st.none() | PCI,
    st.lists(PORTS, max_size=2).map(tuple),
    st.just("/sys/class/infiniband/mlx5_0"),
    for_compute=st.booleans(),
)
INTERFACES = st.builds(
    Interface,
    st.sampled_from(["eth0", "eth1", "ib0", "hsn0", "docker0"]),
    st.sampled_from(["up", "down", "unknown", None]),
    st.sampled_from([1, 32, None]),
    st.sampled_from([None, 1000, 25_000, 100_000]),
    st.none(),
    st.none(),
    st.none() | PCI,
    is_default_route=st.booleans(),
)
GPUS = st.builds(Gpu, st.just(PciDevice("0000:02:00.0")), has_c2c=st.sampled_from([None, True, False]))
SOFTWARE = st.builds(
    Software,
    nccl_version=st.none() | VERSIONS,
    nccl_plugins=st.sampled_from([(), (Plugin("net", "/opt/x.so", True),)]),
    ofi_plugin_version=st.sampled_from([None, "1.4.0", "1.5.0", "1.13.2"]),
)
FABRICS = st.builds(
    Fabric,
    st.sampled_from(FabricKind),
    st.lists(ADAPTERS, max_size=4, unique_by=lambda each: each.name).map(tuple),
    st.lists(INTERFACES, max_size=4, unique_by=lambda each: each.name).map(tuple),
    st.lists(GPUS, max_size=2).map(tuple),
    software=SOFTWARE,
)
REASONED = {"NCCL_NET_GDR_LEVEL", "NCCL_LL128_C2C", "NCCL_PROTO"}
"""Variables for debugging that are derived, each with a document that prescribes it."""


@given(FABRICS, st.integers(1, 9), st.integers(0, 8), st.none() | VERSIONS)
def test_every_derived_variable_is_known_allowed_and_justified(
    fabric: Fabric, nodes: int, gpus: int, version: str | None
) -> None:
    found = derive(fabric, nodes, gpus, version)
    assert len({each.name for each in found}) == len(found)
    read = version or fabric.software.nccl_version
    for each in found:
        variable = registry().variables[each.name]
        assert variable.accepts(each.value), f"{each.name}={each.value}"
        assert variable.kind == "system" or each.name in REASONED
        assert each.reason
        assert each.evidence
        assert each.source
        if read is not None and variable.library == "nccl":
            assert variable.is_read_by(read)
            assert holds_at(read, each.since, each.until)
        if variable.fabrics:
            assert fabric.kind in variable.fabrics
        assert nodes > 1 or not variable.network


@given(FABRICS, st.integers(2, 9), st.integers(1, 8), st.sets(st.sampled_from(sorted(registry().variables))))
def test_values_of_the_user_win(fabric: Fabric, nodes: int, gpus: int, names: set[str]) -> None:
    mine = dict.fromkeys(names, "mine")
    added = [each for each in derive(fabric, nodes, gpus, given=mine) if each.name not in mine]
    assert not names & {each.name for each in added}


@given(FABRICS, st.integers(1, 9), st.integers(1, 8))
def test_the_lint_has_no_errors_about_derived_values(fabric: Fabric, nodes: int, gpus: int) -> None:
    found = values(derive(fabric, nodes, gpus))
    settings = {name: Setting(name, value, "derived") for name, value in found.items()}
    version = fabric.software.nccl_version
    findings = lint(settings, fabric=fabric, nodes=nodes, nccl_version=version, derived=found)
    assert [each for each in findings if each.severity is FindingSeverity.ERROR] == []
