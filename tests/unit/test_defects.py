"""Defects of a node, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.choose_adapters import choose_adapters
from jobs.fabric.defects import defects, pcie_gbit_per_s
from jobs.fabric.derive import derive
from jobs.fabric.description import Fabric, PciDevice


@pytest.fixture
def ndr(fabric_of: Callable[[str], Fabric]) -> Fabric:
    return fabric_of("ndr")


@pytest.mark.parametrize("kind", ["ndr", "hdr_mixed", "ethernet_25g", "nvlink", "pcie", "cpu"])
def test_healthy_nodes(kind: str, fabric_of: Callable[[str], Fabric]) -> None:
    assert defects(fabric_of(kind)) == ()


def test_adapters_beside_a_gpu_that_are_not_used(fabric_of: Callable[[str], Fabric]) -> None:
    assert defects(fabric_of("dead_hca")) == (
        "mlx5_3: port 1 is DOWN (Polling): check the cable and the switch port",
        "mlx5_6: degraded: 200 Gbit/s on 2 of 4 lanes, where the same model reaches 400 Gbit/s",
    )


def test_nodes_all_of_whose_adapters_are_down_would_use_tcp(fabric_of: Callable[[str], Fabric]) -> None:
    down = fabric_of("all_down")
    assert defects(down) == (
        "no adapter is active, so NCCL would use TCP: mlx5_0: port 1 is DOWN (Polling): check the cable and "
        "the switch port; 7 other adapters are not active either",
    )
    (two,) = defects(replace(down, adapters=down.adapters[:2]))
    assert two.endswith("; 1 other adapter is not active either")
    (fails,) = defects(down, {"NCCL_NET": "ib"})
    assert fails.startswith("no adapter is active, so NCCL fails: mlx5_0: ")
    for chosen in ({"NCCL_NET": "Socket"}, {"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "^mlx5"}):
        assert defects(down, chosen) == (), "TCP was chosen"
    assert defects(replace(down, gpus=())) == ()


def test_the_second_port_of_a_card_needs_no_cable(ndr: Fabric, fabric_of: Callable[[str], Fabric]) -> None:
    """Cards of two ports, each a function with an adapter, of which one has a cable."""
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


def test_adapters_that_the_user_leaves_out(fabric_of: Callable[[str], Fabric]) -> None:
    node = fabric_of("dead_hca")
    both = defects(node)
    (derived,) = (each.value for each in derive(node, 2, 8) if each.name == "NCCL_IB_HCA")
    assert defects(node, {"NCCL_IB_HCA": derived}) == both, "a derived list hides no defect"
    assert defects(node, {"NCCL_IB_HCA": "^mlx5_9"}) == both
    assert defects(node, {"NCCL_IB_HCA": "^mlx5_3"}) == both[1:]
    assert defects(node, {"NCCL_IB_HCA": "=mlx5_0,mlx5_6"}) == both[1:]


def test_adapters_that_may_be_for_storage(fabric_of: Callable[[str], Fabric]) -> None:
    """A flat PCI bus, as on virtual machines, and adapters of one rate."""
    mixed = fabric_of("hdr_mixed")
    places = [each.pci for each in mixed.adapters if each.pci]
    ten = [
        replace(each, ports=mixed.adapters[0].ports, pci=replace(pci, path=pci.path[-1:]))
        for each, pci in zip(mixed.adapters, places, strict=True)
    ]
    _, eight = choose_adapters(ten[:8], mixed.interfaces, mixed.gpus)
    assert defects(replace(mixed, adapters=eight)) == ()
    _, chosen = choose_adapters(ten, mixed.interfaces, mixed.gpus)
    assert all(each.for_compute for each in chosen), "NCCL_IB_HCA is not derived from a guess"
    (line,) = defects(replace(mixed, adapters=chosen))
    assert line.startswith("mlx5_0, mlx5_1, mlx5_2, ")
    assert line.endswith("name the other adapters in NCCL_IB_HCA of the site profile")
    assert defects(replace(mixed, adapters=chosen), {"NCCL_IB_HCA": "=mlx5_0"}) == ()


def test_a_narrow_slot(ndr: Fabric) -> None:
    first = ndr.adapters[0]
    assert first.pci is not None
    narrow = replace(first, pci=replace(first.pci, lanes=8))
    assert defects(replace(ndr, adapters=(narrow, *ndr.adapters[1:]))) == (
        "mlx5_0: PCIe carries 252 Gbit/s (32 GT/s on 8 lanes), less than its 400 Gbit/s: "
        "check the slot and its settings",
    )


def test_inactive_nvlinks(ndr: Fabric) -> None:
    gpu = replace(ndr.gpus[0], nvlinks_active=17)
    found = defects(replace(ndr, gpus=(gpu, *ndr.gpus[1:])))
    assert found == (
        "GPU 0000:13:00.0: 17 of 18 NVLinks are active: run `nvidia-smi nvlink --status` on the node; have "
        "the GPU reset or the node drained",
    )


def test_nvlinks_that_no_bridge_connects(fabric_of: Callable[[str], Fabric]) -> None:
    """H100 NVL has 18 links, of which its bridges connect 12. Behind an NVSwitch, all are connected."""
    node = fabric_of("pcie")
    bridged = tuple(replace(gpu, nvlinks=18, nvlinks_active=12) for gpu in node.gpus)
    alone = replace(bridged[0], nvlinks_active=0)
    assert defects(replace(node, gpus=(alone, *bridged[1:]))) == ()
    slower = replace(bridged[0], nvlinks_active=11)
    (line,) = defects(replace(node, gpus=(slower, *bridged[1:])))
    assert "11 of 12 NVLinks are active" in line
    assert defects(replace(node, gpus=(slower, *(replace(gpu, name="L4") for gpu in bridged[1:])))) == ()
    switched = replace(node, gpus=tuple(replace(gpu, is_behind_nvswitch=True) for gpu in bridged))
    assert len(defects(switched)) == len(node.gpus)


def test_locked_memory(fabric_of: Callable[[str], Fabric]) -> None:
    (line,) = defects(fabric_of("roce_bond"))
    assert line.startswith("locked memory is limited to 64 KiB (/proc/self/limits)")


def test_devices_for_verbs(ndr: Fabric) -> None:
    (line,) = defects(replace(ndr, software=replace(ndr.software, has_verbs_devices=False)))
    assert line.startswith("/dev/infiniband has no uverbs device")


def test_gpudirect(ndr: Fabric) -> None:
    closed = replace(ndr.software, has_peermem=False, is_open_driver=False)
    (line,) = defects(replace(ndr, software=closed))
    assert line.startswith("no GPUDirect RDMA")
    assert defects(replace(ndr, software=replace(closed, is_open_driver=True))) == ()
    assert defects(replace(ndr, software=replace(closed, is_open_driver=None))) == ()


def test_plugins(fabric_of: Callable[[str], Fabric]) -> None:
    (hidden,) = defects(fabric_of("efa_p5"))
    assert "libnccl-net.so is not on the path of libraries, so NCCL would use TCP" in hidden
    (missing,) = defects(fabric_of("cxi"))
    assert missing.startswith("no network plugin of NCCL")
    assert defects(fabric_of("efa_p5"), {"NCCL_NET_PLUGIN": "tcpx"}) == (), "not judged"


@pytest.mark.parametrize(
    ("speed", "lanes", "gbit"), [(32.0, 16, 504.1), (8.0, 8, 63.0), (5.0, 8, 32.0), (None, 8, None)]
)
def test_rates_of_pcie(speed: float | None, lanes: int, gbit: float | None) -> None:
    found = pcie_gbit_per_s(PciDevice("a", link_gt_per_s=speed, lanes=lanes))
    assert found == (pytest.approx(gbit, abs=0.05) if gbit else None)
