"""Variables that choose the transport between nodes, judged on copies of nodes with various networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.defects import defects
from jobs.fabric.description import Fabric, Plugin
from jobs.fabric.findings import Finding, Setting
from jobs.fabric.lint import lint

FabricOf = Callable[[str], Fabric]
COMPUTE = "=" + ",".join(f"mlx5_{index}" for index in range(8))


def findings(fabric: Fabric, *words: str, nodes: int = 2, nccl: str | None = None) -> list[Finding]:
    """Findings about the given variables, apart from notes."""
    pairs = [word.split("=", 1) for word in words]
    settings = {name: Setting(name, value, "here") for name, value in pairs}
    found = lint(settings, fabric=fabric, nodes=nodes, nccl_version=nccl or fabric.software.nccl_version)
    return [each for each in found if each.name in settings and each.severity != "info"]


def with_plugin(fabric: Fabric, *names: str, is_reachable: bool = True) -> Fabric:
    plugin = Plugin("net", f"/opt/ofi/{names[0]}", is_reachable, names)
    return replace(fabric, software=replace(fabric.software, nccl_plugins=(plugin,)))


@pytest.mark.parametrize(
    ("kind", "word", "severity", "words"),
    [
        ("ethernet_25g", "NCCL_NET=IB", "error", "fails: the network is ethernet; remove it, or set Socket"),
        ("efa_p5", "NCCL_NET=ib", "error", "the network is efa; set 'AWS Libfabric'"),
        ("ndr", "NCCL_NET=Socket", "warning", "8 adapters with 3200 Gbit/s of infiniband; remove it"),
        ("cxi", "NCCL_NET=Socket", "warning", "4 adapters with 800 Gbit/s of slingshot; set 'AWS Libfabric'"),
        ("ndr", "NCCL_NET=AWS Libfabric", "error", "no network plugin of NCCL (aws-ofi-nccl), so NCCL fails"),
        ("efa_p5", "NCCL_NET=AWS Libfabric", "error", "is not on the path of libraries, so NCCL fails"),
        ("ndr", "NCCL_NET=Sokcet", "error", "it has IB and Socket; remove it, or set IB; did you mean 'So"),
        ("cxi", "NCCL_NET_PLUGIN=none", "warning", "NCCL loads no plugin, so NCCL uses TCP; remove it"),
        ("ndr", "NCCL_NET_PLUGIN=ofi", "warning", "no plugin ofi, so NCCL uses its own transport IB"),
        ("efa_p5", "NCCL_NET_PLUGIN=libnccl-net.so", "warning", "add /opt/amazon/ofi-nccl/lib/x86_64"),
        ("dead_hca", "NCCL_IB_HCA==mlx5_3", "error", "(mlx5_3:1 is DOWN), so NCCL uses TCP; set =mlx5_0,"),
        ("dead_hca", "NCCL_IB_HCA=mlx5_0:2", "error", "permits none of the node's adapters mlx5_0, "),
        ("ndr", "NCCL_IB_HCA=^mlx5", "error", f"so NCCL uses TCP; set {COMPUTE}"),
        ("hdr_mixed", "NCCL_IB_HCA==mlx5_8,mlx5_9", "warning", "mlx5_8: no GPU below its PCIe switch"),
        ("hdr_mixed", f"NCCL_IB_HCA=^{COMPUTE}", "warning", f"set {COMPUTE}"),
        ("hdr_mixed", f"NCCL_IB_HCA={COMPUTE},mlx5_99", "warning", "no adapter 'mlx5_99'"),
        ("ndr", "NCCL_IB_HCA=mlx5_0", "warning", f"NCCL uses 1 of 8 adapters for computing; set {COMPUTE},"),
        ("ndr", "NCCL_IB_HCA=^mlx5_3", "warning", "it leaves out mlx5_3, so NCCL uses 7 of 8 adapters"),
        ("hdr_mixed", "NCCL_IB_HCA=mlx5", "warning", "it also permits adapters that were not chosen for"),
        ("dead_hca", "NCCL_IB_HCA=mlx5", "warning", "(mlx5_6: degraded: 200 Gbit/s on 2 of 4 lanes"),
        ("roce_bond", "NCCL_IB_GID_INDEX=9", "error", "3 (RoCE v2); set 3 (RoCE v2, IPv4)"),
        ("roce_bond", "NCCL_IB_GID_INDEX=2", "warning", "an address of IB/RoCE v1 on mlx5_0"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_the_node(
    kind: str, word: str, severity: str, words: str, fabric_of: FabricOf
) -> None:
    (found,) = findings(fabric_of(kind), word)
    assert found.severity == severity
    assert words in found.message
    assert str(found.source).startswith("https://")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("ndr", "NCCL_NET=IB"),
        ("ethernet_25g", "NCCL_NET=Socket"),
        ("ethernet_25g", "NCCL_NET_PLUGIN=none"),
        ("ndr", "NCCL_NET_PLUGIN=/opt/mine/libnccl-net-mine.so"),
        ("ndr", "NCCL_NET_PLUGIN=,"),
        ("ndr", "NCCL_IB_HCA=mlx5"),
        ("dead_hca", "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_7"),
        ("hdr_mixed", "NCCL_IB_HCA=^=mlx5_8,mlx5_9"),
        ("hdr_mixed", f"NCCL_IB_HCA={COMPUTE}"),
        ("roce_bond", "NCCL_IB_GID_INDEX=3"),
        ("roce_bond", "NCCL_IB_GID_INDEX=1"),
        ("roce_bond", "NCCL_IB_GID_INDEX=-1"),
    ],
)
def test_a_value_that_fits(kind: str, word: str, fabric_of: FabricOf) -> None:
    assert findings(fabric_of(kind), word) == []


def test_names_of_an_installed_plugin(fabric_of: FabricOf) -> None:
    fabric = with_plugin(fabric_of("efa_p5"), "libnccl-net.so", "libnccl-net-ofi.so")
    for word in (
        "NCCL_NET=Libfabric",
        "NCCL_NET=MINE",
        "NCCL_NET_PLUGIN=ofi",
        "NCCL_NET_PLUGIN=libnccl-net.so",
    ):
        assert findings(fabric, word) == [], word
    (found,) = findings(fabric, "NCCL_NET_PLUGIN=offi")
    assert "it has libnccl-net, ofi" in found.message
    assert found.message.endswith("did you mean 'ofi'?")
    (beside_ethernet,) = findings(with_plugin(fabric_of("ethernet_25g"), "libnccl-net.so"), "NCCL_NET=OFI")
    assert beside_ethernet.severity == "warning"


def test_a_plugin_is_not_judged_in_a_tree_without_libraries(fabric_of: FabricOf) -> None:
    fabric = fabric_of("cxi")
    bare = replace(fabric, software=replace(fabric.software, nccl_version=None))
    assert findings(bare, "NCCL_NET=AWS Libfabric") == []
    assert findings(bare, "NCCL_NET_PLUGIN=ofi") == []


def test_a_list_that_permits_nothing_fails_with_ib_alone(fabric_of: FabricOf) -> None:
    (found,) = findings(fabric_of("dead_hca"), "NCCL_IB_HCA==mlx5_3", "NCCL_NET=IB")
    assert "so NCCL fails" in found.message


def test_the_address_of_permitted_adapters_counts_alone(fabric_of: FabricOf) -> None:
    fabric = fabric_of("roce_bond")
    first = fabric.adapters[0]
    port = first.ports[0]
    short = replace(first, ports=(replace(port, gids=port.gids[:2]),))
    uneven = replace(fabric, adapters=(short, *fabric.adapters[1:]))
    (found,) = findings(uneven, "NCCL_IB_GID_INDEX=3")
    assert found.message.startswith("port 1 of mlx5_0 has no such address")
    others = "mlx5_1 3, mlx5_2 3, mlx5_3 3"
    assert found.message.endswith(f"adapters with one index of RoCE v2 in NCCL_IB_HCA ({others})")
    assert findings(uneven, "NCCL_IB_GID_INDEX=3", "NCCL_IB_HCA==mlx5_1,mlx5_2,mlx5_3") == []
    (left_out,) = findings(uneven, "NCCL_IB_GID_INDEX=3", "NCCL_IB_HCA==mlx5_1,mlx5_2")
    assert left_out.message.startswith("it leaves out mlx5_3, so NCCL uses 2 of 3 adapters")
    (newer,) = findings(uneven, "NCCL_IB_GID_INDEX=3", nccl="2.27.5")
    assert newer.message.endswith("remove it, as NCCL newer than 2.20.5 chooses")


def test_adapters_that_may_be_for_storage_may_be_left_out(fabric_of: FabricOf) -> None:
    fabric = fabric_of("ndr")
    fewer = replace(fabric, gpus=fabric.gpus[:6])
    (doubt,) = (text for text in defects(fewer) if "counted as for computing" in text)
    assert doubt.startswith("mlx5_6, mlx5_7: ")
    assert "name the other adapters in NCCL_IB_HCA" in doubt
    assert findings(fewer, "NCCL_IB_HCA=^=mlx5_6,mlx5_7") == []
    (left_out,) = findings(fewer, "NCCL_IB_HCA=^=mlx5_3,mlx5_6,mlx5_7")
    assert left_out.message.startswith("it leaves out mlx5_3, so NCCL uses 5 of 6 adapters")
    assert "set =mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5, unless" in left_out.message


def test_a_list_may_leave_out_an_adapter_at_part_of_its_rate(fabric_of: FabricOf) -> None:
    fabric = fabric_of("ndr")
    slow = replace(fabric.adapters[3].ports[0], rate_gbit_per_s=200.0)
    adapters = [replace(each, ports=(slow,)) if each.name == "mlx5_3" else each for each in fabric.adapters]
    assert findings(replace(fabric, adapters=tuple(adapters)), "NCCL_IB_HCA=^mlx5_3") == []


def test_one_node_uses_no_network(fabric_of: FabricOf) -> None:
    for word in ("NCCL_NET_PLUGIN=ofi", "NCCL_IB_GID_INDEX=9"):
        assert findings(fabric_of("roce_bond"), word, nodes=1) == []


@pytest.mark.parametrize("kind", ["efa_p5", "cxi"])
def test_the_lint_and_the_defects_agree_on_a_missing_plugin(kind: str, fabric_of: FabricOf) -> None:
    fabric = fabric_of(kind)
    (text,) = (each.message for each in lint({}, fabric=fabric, nodes=2) if each.kind == "fallback")
    fact, _, step = text.partition(", so NCCL uses TCP instead of ")
    (line,) = (each for each in defects(fabric) if "plugin" in each)
    assert line == f"{fact}, so NCCL would use TCP: {step.partition('; ')[2]}"


def test_the_address_of_an_adapter_for_management_does_not_count(fabric_of: FabricOf) -> None:
    node = fabric_of("roce_bond")
    *others, bond = node.adapters
    (port,) = bond.ports
    bond = replace(bond, ports=(replace(port, gids=port.gids[:2]),))
    assert findings(replace(node, adapters=(*others, bond)), "NCCL_IB_GID_INDEX=3") == []
