"""Adapters for computing, the reason for each other one, and those that NCCL of a run should use.

Choices on whole nodes are in tests/golden/fabric-trees.txt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.choose_adapters import choose_adapters, expected_adapters, expected_ports
from jobs.fabric.defects import defects
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Gpu, Interface, PciDevice, Port
from jobs.fabric.detect import detect
from tests.support.fabric_tree_builder import Tree
from tests.support.fabric_trees import ndr

Trees = Callable[[str], Fabric]


def at(bus: int, device: int = 0) -> PciDevice:
    """A device of one model; with `device`, below a root port that others of the bus share."""
    root = (f"pci0000:{bus:02x}",) + ((f"0000:{bus:02x}:01.0",) if device else ())
    path = (*root, f"0000:{bus + device:02x}:00.0")
    return PciDevice(path[-1], path, device="0x101b")


def one(
    bus: int,
    rate: float | None = 200.0,
    layer: str = "InfiniBand",
    *,
    kind: AdapterKind = AdapterKind.VERBS,
    state: str = "ACTIVE",
    interface: str = "ib0",
) -> Adapter:
    """An adapter that is named after its bus."""
    port = Port(1, layer, state, None, rate, None, (interface,))
    return Adapter(str(bus), kind, None, None, at(bus), (port,), f"/sys/class/infiniband/{bus}")


def interface(name: str, *members: str, default: bool = False, state: str = "up") -> Interface:
    return Interface(name, state, 1, None, None, "x", None, is_default_route=default, members=members)


IB = FabricKind.INFINIBAND
NEAR = replace(one(1), pci=at(1, 3))
ROCE = [one(1, layer="Ethernet", interface="eth0"), one(2, layer="Ethernet")]
EFA = one(1, 100, "Unspecified", kind=AdapterKind.EFA, interface="eth1")
ROUTE = interface("bond0", "eth0", default=True)


@pytest.mark.parametrize(
    ("adapters", "others", "kind", "reasons"),
    [
        ([one(1), one(2, layer="Ethernet")], [], IB, {"2": "RoCE beside InfiniBand"}),
        # the most frequent rate, of equally frequent ones the highest
        ([one(1, 400), one(2), one(3)], [], IB, {"1": "400 Gbit/s, faster than the 200 Gbit/s of most"}),
        ([one(1, 100), one(2)], [], IB, {"1": "degraded: 100 Gbit/s"}),
        ([one(1, None), one(2)], [], IB, {"1": "its rate is unknown, unlike that of others"}),
        # beside GPUs, the rate of the adapters near them
        ([NEAR, one(8, 100), one(9, 100)], [Gpu(at(1, 2))], IB, {"8": "degraded: 100", "9": "degraded: 100"}),
        # those apart are for storage only where each GPU has one near it
        ([NEAR, one(8)], [Gpu(at(1, 2))], IB, {"8": "no GPU below its PCIe switch"}),
        ([NEAR, one(8)], [Gpu(at(1, 2)), Gpu(at(0x20))], IB, {}),
        # the default route is for management, but for RoCE that has no other adapter
        (ROCE, [ROUTE], FabricKind.ROCE, {"1": "its interface bond0 has the default route"}),
        (ROCE[:1], [ROUTE], FabricKind.ROCE, {}),
        ([one(1), one(2, interface="ib1")], [interface("ib0", default=True)], IB, {}),
        ([EFA], [interface("eth1")], FabricKind.EFA, {}),
        ([EFA], [interface("eth1", state="down")], FabricKind.NONE, {"1": "its interface eth1 is down"}),
        ([one(1, state="INIT")], [interface("eth0")], FabricKind.ETHERNET, {"1": "port 1 is INIT"}),
        ([replace(one(1), pci=None)], [], FabricKind.NONE, {"1": "no PCI device: software RDMA"}),
    ],
)  # fmt: skip
def test_adapters_for_computing(adapters, others, kind, reasons):
    """All are chosen but those with a reason."""
    interfaces = [each for each in others if isinstance(each, Interface)]
    gpus = [each for each in others if isinstance(each, Gpu)]
    found, chosen = choose_adapters(adapters, interfaces, gpus)
    assert found == kind
    assert {each.name for each in chosen if not each.for_compute} == reasons.keys()
    assert all(each.reason.startswith(reasons.get(each.name, "")) for each in chosen)


DEGRADED = "degraded: 200 Gbit/s on 2 of 4 lanes, where the same model reaches 400 Gbit/s"


@pytest.mark.parametrize(("slow", "chosen"), [(1, 7), (3, 5), (4, 4), (5, 8), (7, 8)])
def test_degraded_adapters_are_left_out_where_the_others_carry_as_much(slow, chosen, tmp_path):
    ndr(Tree(tmp_path), half_rate=range(slow))
    node = detect(tmp_path)
    assert all(each.for_compute for each in node.adapters[slow:])
    assert len(node.compute_adapters) == chosen
    assert [each.reason.endswith(DEGRADED) for each in node.adapters] == [
        number < slow for number in range(8)
    ]
    assert [line for line in defects(node) if DEGRADED in line] == [
        f"mlx5_{number}: {DEGRADED}" for number in range(slow)
    ]


@pytest.mark.parametrize(
    ("changed", "port", "left_out"),
    [
        (range(6), {"rate_gbit_per_s": 100.0}, ["mlx5_8", "mlx5_9"]),  # at the rate of storage
        ([2], {"state": "DOWN"}, ["mlx5_2", "mlx5_8", "mlx5_9"]),
    ],
)
def test_storage_stays_out_beside_degraded_and_dead_adapters(changed, port, left_out, fabric_of):
    node = fabric_of("hdr_mixed")
    adapters = [
        replace(each, ports=(replace(each.ports[0], **port),)) if number in changed else each
        for number, each in enumerate(node.adapters)
    ]
    _, chosen = choose_adapters(adapters, node.interfaces, node.gpus)
    assert [each.name for each in chosen if not each.for_compute] == left_out


COMPUTE = [*range(8)]
"""Not mlx5_8, which is as fast, but for storage."""


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({}, COMPUTE),
        ({"NCCL_IB_HCA": "mlx5"}, COMPUTE),
        ({"NCCL_IB_HCA": "=mlx5_1:1,mlx5_2:2"}, [1]),
        ({"NCCL_IB_HCA": "^=mlx5_0,mlx5_9"}, COMPUTE[1:]),
        ({"NCCL_IB_HCA": "=mlx5_8,mlx5_9"}, [8, 9]),  # the user wants the others
        ({"NCCL_IB_DISABLE": "01 "}, []),
        ({"NCCL_IB_DISABLE": "0\r"}, COMPUTE),
        ({"NCCL_NET": "Socket"}, []),
    ],
)
def test_adapters_that_nccl_should_use(settings, numbers, fabric_of):
    expected = tuple(f"mlx5_{number}/1" for number in numbers)
    assert expected_ports(fabric_of("hdr_mixed"), settings) == expected


@pytest.mark.parametrize("settings", [{"NCCL_IB_HCA": "=mlx5_0"}, {"NCCL_IB_DISABLE": "1"}])
def test_settings_of_nccls_own_transport_do_not_apply_to_efa(settings, fabric_of):
    assert expected_adapters(fabric_of("efa_p5"), settings) == fabric_of("efa_p5").compute_adapters


def test_adapters_that_were_not_chosen_are_expected_only_by_name(fabric_of):
    node = fabric_of("hdr_mixed")
    node = replace(node, adapters=tuple(replace(each, for_compute=False) for each in node.adapters))
    assert expected_ports(node, {}) == ()
    assert expected_ports(node, {"NCCL_IB_HCA": "=mlx5_9"}) == ("mlx5_9/1",)


def test_of_several_ports_the_fastest_permitted_ones_are_expected(fabric_of):
    node = fabric_of("hdr_mixed")
    first = node.adapters[0]
    slower = replace(first.ports[0], number=2, rate_gbit_per_s=100.0)
    dead = replace(first.ports[0], number=3, state="DOWN")
    node = replace(node, adapters=(replace(first, ports=(*first.ports, slower, dead)),))
    assert expected_ports(node, {}) == ("mlx5_0/1",)
    settings = {"NCCL_IB_HCA": "=mlx5_0:2,mlx5_0:3"}
    assert expected_ports(node, settings) == ("mlx5_0/2",)
    assert [each.rate_gbit_per_s for each in expected_adapters(node, settings)] == [100.0]
