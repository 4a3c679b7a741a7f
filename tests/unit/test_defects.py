"""Defects of a node. Those of the trees are in tests/golden/fabric-trees.txt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.choose_adapters import choose_adapters
from jobs.fabric.defects import defects, pcie_gbit_per_s
from jobs.fabric.derive import derive
from jobs.fabric.description import Fabric, Gpu, PciDevice

Trees = Callable[[str], Fabric]


@pytest.mark.parametrize(
    ("settings", "count", "start"),
    [
        ({}, 8, "no adapter is active, so NCCL would use TCP: mlx5_0: "),
        ({"NCCL_NET": "ib"}, 2, "no adapter is active, so NCCL fails: mlx5_0: "),
        ({"NCCL_NET": "Socket"}, 8, None),
        ({"NCCL_IB_DISABLE": "1"}, 8, None),
        ({"NCCL_IB_HCA": "^mlx5"}, 8, None),
    ],
)
def test_nodes_all_of_whose_adapters_are_down_would_use_tcp_without_a_choice(
    settings, count, start, fabric_of
):
    down = fabric_of("all_down")
    down = replace(down, adapters=down.adapters[:count])
    lines = defects(down, settings)
    assert [line[: len(start or "")] for line in lines] == ([start] if start else [])
    others = "7 other adapters are" if count > 2 else "1 other adapter is"
    assert all(line.endswith(f"; {others} not active either") for line in lines)
    assert defects(replace(down, gpus=()), settings) == ()


def test_the_second_port_of_a_card_needs_no_cable(fabric_of):
    """Cards of two ports, each a function with an adapter, of which one has a cable."""
    ndr = fabric_of("ndr")
    (dead,) = (each for each in fabric_of("dead_hca").adapters if each.active_port is None)
    seconds = [
        replace(
            dead,
            name=f"{each.name}b",
            pci=replace(pci, address=pci.address[:-1] + "1", path=(*pci.path[:-1], pci.address[:-1] + "1")),
        )
        for each in ndr.compute_adapters
        if (pci := each.pci)
    ]
    assert defects(replace(ndr, adapters=(*ndr.adapters, *seconds))) == ()
    up = replace(seconds[0], ports=ndr.compute_adapters[0].ports, for_compute=True, reason="InfiniBand")
    found = defects(replace(ndr, adapters=(*ndr.adapters, up, *seconds[1:])))
    assert len(found) == len(seconds) - 1, "one card shows that both ports are to be used"


def test_adapters_that_the_user_leaves_out(fabric_of):
    node = fabric_of("dead_hca")
    both = defects(node)
    assert [line.partition(":")[0] for line in both] == ["mlx5_3", "mlx5_6"]
    (derived,) = (each.value for each in derive(node, 2, 8) if each.name == "NCCL_IB_HCA")
    for names, expected in {
        derived: both,  # a derived list hides no defect
        "^mlx5_9": both,
        "^mlx5_3": both[1:],
        "=mlx5_0,mlx5_6": both[1:],
    }.items():
        assert defects(node, {"NCCL_IB_HCA": names}) == expected


def test_adapters_that_may_be_for_storage(fabric_of):
    """A flat PCI bus, as on virtual machines, and adapters of one rate."""
    mixed = fabric_of("hdr_mixed")
    ten = [
        replace(each, ports=mixed.adapters[0].ports, pci=replace(each.pci, path=each.pci.path[-1:]))
        for each in mixed.adapters
        if each.pci
    ]

    def found(count: int, **settings: str) -> tuple[str, ...]:
        _, chosen = choose_adapters(ten[:count], mixed.interfaces, mixed.gpus)
        assert all(each.for_compute for each in chosen), "NCCL_IB_HCA is not derived from a guess"
        return defects(replace(mixed, adapters=chosen), settings)

    assert found(8) == found(10, NCCL_IB_HCA="=mlx5_0") == ()
    (line,) = found(10)
    assert line.startswith("mlx5_0, mlx5_1, mlx5_2, ")


@pytest.mark.parametrize(
    ("gpus", "active"),
    [
        ([{}], "17 of 18"),
        ([{"is_behind_nvswitch": True}], "17 of 18"),
        ([{"nvlinks_active": 0}], None),  # no bridge connects it
        # H100 NVL has 18 links, of which its bridges connect 12
        ([{"nvlinks_active": 12}] * 8, None),
        ([{"nvlinks_active": 12, "is_behind_nvswitch": True}] * 8, "12 of 18"),
        ([{"nvlinks_active": 11}, *[{"nvlinks_active": 12}] * 7], "11 of 12"),
        ([{"nvlinks_active": 11, "name": "L4"}, *[{"nvlinks_active": 12}] * 7], None),
    ],
)
def test_inactive_nvlinks(gpus, active, fabric_of):
    """The first of eight GPUs with 18 links has fewer active ones than the others, or all have."""
    ndr = fabric_of("ndr")
    changed: list[Gpu] = list(ndr.gpus)
    for number, changes in enumerate(gpus):
        changed[number] = replace(changed[number], **({"nvlinks_active": 17} | changes))
    lines = defects(replace(ndr, gpus=tuple(changed)))
    alike = len(gpus) if active == "12 of 18" else 1
    assert len(lines) == (alike if active else 0)
    assert all(f"GPU 0000:13:00.0: {active} NVLinks are active: " in line for line in lines[:1])


@pytest.mark.parametrize(
    ("software", "start"),
    [
        ({"has_verbs_devices": False}, "/dev/infiniband has no uverbs device"),
        ({"memory_lock_bytes": 2**30 - 1}, "locked memory is limited"),
        ({"memory_lock_bytes": 2**30}, None),
        ({"has_peermem": False, "is_open_driver": False}, "no GPUDirect RDMA"),
        ({"has_peermem": False, "is_open_driver": True}, None),
        ({"has_peermem": False, "is_open_driver": None}, None),
        ({"has_peermem": True, "is_open_driver": False}, None),
    ],
)
def test_limits_devices_and_modules(software, start, fabric_of):
    ndr = fabric_of("ndr")
    lines = defects(replace(ndr, software=replace(ndr.software, **software)))
    assert [line[: len(start or "")] for line in lines] == ([start] if start else [])


def test_a_plugin_that_the_user_names_is_not_judged(fabric_of):
    assert len(defects(fabric_of("efa_p5"))) == 1
    assert defects(fabric_of("efa_p5"), {"NCCL_NET_PLUGIN": "tcpx"}) == ()


def test_a_narrow_slot(fabric_of):
    ndr = fabric_of("ndr")
    first, *others = ndr.adapters
    narrow = replace(first, pci=replace(first.pci, lanes=8))
    (line,) = defects(replace(ndr, adapters=(narrow, *others)))
    assert line.startswith("mlx5_0: PCIe carries 252 Gbit/s (32 GT/s on 8 lanes), less than its 400 Gbit/s")


@pytest.mark.parametrize(
    ("speed", "lanes", "gbit"), [(32.0, 16, 504.1), (8.0, 8, 63.0), (5.0, 8, 32.0), (None, 8, None)]
)
def test_rates_of_pcie(speed, lanes, gbit):
    found = pcie_gbit_per_s(PciDevice("a", link_gt_per_s=speed, lanes=lanes))
    assert found == (pytest.approx(gbit, abs=0.05) if gbit else None)
