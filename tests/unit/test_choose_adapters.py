"""Which adapters are for computing, and the reason for each other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.fabric.choose_adapters import choose_adapters
from jobs.fabric.defects import defects
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Gpu, Interface, PciDevice, Port
from jobs.fabric.detect import detect
from tests.support.fabric_tree_builder import Tree
from tests.support.fabric_trees import ndr


def adapter(name: str, bus: int, rate: float = 200, layer: str = "InfiniBand", **given: object) -> Adapter:
    state = str(given.pop("state", "ACTIVE"))
    interfaces = tuple(given.pop("interfaces", ()))  # type: ignore[arg-type]
    port = Port(1, layer, state, None, rate, f"{rate:g} Gb/sec (4X HDR)", interfaces)
    pci = PciDevice(f"0000:{bus:02x}:00.0", (f"pci0000:{bus:02x}",), device="0x101b")
    values = {"kind": AdapterKind.VERBS, "driver": "mlx5_core", "firmware": None, "pci": pci} | given
    return Adapter(name=name, ports=(port,), evidence=f"/sys/class/infiniband/{name}", **values)  # type: ignore[arg-type]


def reasons(*adapters: Adapter, interfaces: tuple[Interface, ...] = (), gpus: tuple[Gpu, ...] = ()) -> dict:
    kind, chosen = choose_adapters(adapters, interfaces, gpus)
    return {"kind": kind} | {each.name: True if each.for_compute else each.reason for each in chosen}


def interface(
    name: str, *, default: bool = False, state: str = "up", members: tuple[str, ...] = ()
) -> Interface:
    return Interface(name, state, 1, None, None, "x", None, is_default_route=default, members=members)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "dead_hca",
            {
                "mlx5_3": "port 1 is DOWN (Polling): check the cable and the switch port",
                "mlx5_6": "degraded: 200 Gbit/s on 2 of 4 lanes, where the same model reaches 400 Gbit/s",
            },
        ),
        (
            "hdr_mixed",
            {
                "mlx5_8": "no GPU below its PCIe switch, unlike others at its rate: storage or management",
                "mlx5_9": "100 Gbit/s, slower than the 200 Gbit/s of most: storage or management",
            },
        ),
        (
            "roce_bond",
            {"mlx5_bond_0": "25 Gbit/s, slower than the 200 Gbit/s of most: storage or management"},
        ),
        ("ndr", {}),
        ("efa_p5", {}),
    ],
)
def test_reasons_against(kind: str, expected: dict[str, str], fabric_of: Callable[[str], Fabric]) -> None:
    node = fabric_of(kind)
    assert {each.name: each.reason for each in node.excluded_adapters} == expected


def half_rate_tree(folder: Path, half_rate: range) -> Fabric:
    folder.mkdir()
    ndr(Tree(folder), half_rate=half_rate)
    return detect(folder)


DEGRADED = "degraded: 200 Gbit/s on 2 of 4 lanes, where the same model reaches 400 Gbit/s"


@pytest.mark.parametrize(("slow", "chosen"), [(1, 7), (3, 5), (4, 4), (5, 8), (7, 8)])
def test_healthy_adapters_are_for_computing_whatever_the_number_of_degraded_ones(
    slow: int, chosen: int, tmp_path: Path
) -> None:
    node = half_rate_tree(tmp_path / "root", range(slow))
    by_name = {each.name: each for each in node.adapters}
    assert all(by_name[f"mlx5_{index}"].for_compute for index in range(slow, 8))
    assert len(node.compute_adapters) == chosen
    assert all(each.reason.endswith(DEGRADED) for each in node.adapters[:slow])
    assert not any("degraded" in each.reason for each in node.adapters[slow:])
    assert [line for line in defects(node) if DEGRADED in line] == [
        f"mlx5_{index}: {DEGRADED}" for index in range(slow)
    ]


def test_storage_at_the_rate_of_degraded_adapters_stays_out(fabric_of: Callable[[str], Fabric]) -> None:
    node = fabric_of("hdr_mixed")
    slow = {f"mlx5_{index}" for index in range(6)}
    adapters = [
        replace(each, ports=(replace(each.ports[0], rate_gbit_per_s=100.0),)) if each.name in slow else each
        for each in node.adapters
    ]
    _, chosen = choose_adapters(adapters, node.interfaces, node.gpus)
    assert [each.name for each in chosen if not each.for_compute] == ["mlx5_8", "mlx5_9"]


def test_reasons_for(fabric_of: Callable[[str], Fabric]) -> None:
    node = fabric_of("ndr")
    assert node.adapters[2].reason == "InfiniBand, active at 400 Gbit/s, PIX to GPU 0000:53:00.0"


def test_infiniband_comes_before_roce() -> None:
    found = reasons(adapter("mlx5_0", 1), adapter("mlx5_1", 2, layer="Ethernet"))
    assert found == {
        "kind": FabricKind.INFINIBAND,
        "mlx5_0": True,
        "mlx5_1": "RoCE beside InfiniBand: storage or management",
    }


def test_a_node_without_gpus_takes_the_usual_rate() -> None:
    found = reasons(adapter("a", 1, 100), adapter("b", 2, 200), adapter("c", 3, 200))
    assert [found[name] is True for name in "abc"] == [False, True, True]
    found = reasons(adapter("a", 1, 100), adapter("b", 2, 200))
    assert [found[name] is True for name in "ab"] == [False, True]


def test_the_rate_of_adapters_near_gpus_counts() -> None:
    def below_root_port(bus: int, slot: int) -> PciDevice:
        path = (f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0", f"0000:{slot:02x}:00.0")
        return PciDevice(path[-1], path, device="0x101b")

    gpu = Gpu(below_root_port(1, 2))
    near = adapter("near", 1, 400, pci=below_root_port(1, 3))
    found = reasons(near, adapter("a", 8, 100), adapter("b", 9, 100), gpus=(gpu,))
    assert [found[name] is True for name in ("near", "a", "b")] == [True, False, False]


def test_roce_with_the_default_route_is_for_management_unless_it_is_alone() -> None:
    route = (interface("bond0", default=True, members=("eth0",)),)
    shared = adapter("a", 1, layer="Ethernet", interfaces=["eth0"])
    found = reasons(shared, adapter("b", 2, layer="Ethernet", interfaces=["eth1"]), interfaces=route)
    assert found["a"] == "its interface bond0 has the default route: management"
    assert found["b"] is True
    assert reasons(shared, interfaces=route)["a"] is True


def test_infiniband_with_the_default_route_stays() -> None:
    route = (interface("ib0", default=True),)
    found = reasons(adapter("a", 1, interfaces=["ib0"]), adapter("b", 2), interfaces=route)
    assert (found["a"], found["b"]) == (True, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "INIT"}, "port 1 is INIT: no subnet manager has configured it"),
        ({"state": "DOWN"}, "port 1 is DOWN: check the cable and the switch port"),
        ({"pci": None}, "no PCI device: software RDMA"),
        ({"layer": "Unspecified"}, "link layer Unspecified: not used by NCCL"),
    ],
)
def test_adapters_that_cannot_be_used(changes: dict[str, object], reason: str) -> None:
    found = reasons(adapter("a", 1, **changes), interfaces=(interface("eth0"),))  # type: ignore[arg-type]
    assert found == {"kind": FabricKind.ETHERNET, "a": reason}


def test_an_efa_follows_the_state_of_its_interface() -> None:
    efa = adapter("rdmap1s0", 1, 100, "Unspecified", kind=AdapterKind.EFA, interfaces=["eth1"])
    down = (interface("eth1", state="down"),)
    assert reasons(efa, interfaces=down)["rdmap1s0"] == "its interface eth1 is down"
    assert reasons(efa, interfaces=(interface("eth1"),))["rdmap1s0"] is True


def test_virtual_machines_without_pci_switches_keep_all() -> None:
    gpu = Gpu(PciDevice("0001:00:00.0", ("pci0001:00", "0001:00:00.0")))
    found = reasons(adapter("a", 1), adapter("b", 2), gpus=(gpu,))
    assert (found["a"], found["b"]) == (True, True)


def test_an_unknown_rate_is_not_the_usual_one() -> None:
    odd = replace(adapter("a", 1), ports=(Port(1, "InfiniBand", "ACTIVE", None, None, None),))
    found = reasons(odd, adapter("b", 2))
    assert found["a"] == "its rate is unknown, unlike that of others"
    assert reasons(odd)["a"] is True
