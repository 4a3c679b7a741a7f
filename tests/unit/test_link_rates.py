"""Rates of a node's links, within the PCIe slots of its adapters and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.checks.node_facts import link_bytes_per_s, nvlink
from jobs.fabric.description import Fabric, Gpu, GpuLink, Interface, PciDevice
from jobs.fabric.gpus import NvmlReading
from jobs.fabric.kernel_files import FileTree, read_pci_device
from tests.support.fabric_tree_builder import INTEL, Tree

GBIT = 1e9 / 8
ETHERNET = Interface("eth0", "up", 1, 100_000, 9000, "ice", None)


@pytest.fixture
def ndr(fabric_of: Callable[[str], Fabric]) -> Fabric:
    """Eight GPUs and eight adapters of 400 Gbit/s, each on 504 Gbit/s of PCIe."""
    return replace(fabric_of("ndr"), interfaces=(ETHERNET,))


def with_lanes(fabric: Fabric, adapters: int = 16, gpus: int = 16) -> Fabric:
    """The first adapter and the first GPU on a narrower slot."""
    first, gpu = fabric.adapters[0], fabric.gpus[0]
    assert first.pci is not None
    return replace(
        fabric,
        adapters=(replace(first, pci=replace(first.pci, lanes=adapters)), *fabric.adapters[1:]),
        gpus=(replace(gpu, pci=replace(gpu.pci, lanes=gpus)), *fabric.gpus[1:]),
    )


@pytest.mark.parametrize(
    ("gpus", "adapters", "ranks", "gbit_per_s"),
    [
        (8, 8, 8, 3200),
        (8, 8, 1, 400),  # one rank does not reach the sum of all adapters
        (2, 8, 2, 2 * 504.123),  # four adapters for each GPU, and its slot
        (8, 2, 8, 800),
        (0, 8, 8, 3200),  # a container hides the PCI bus
        (8, 0, 8, 100),  # TCP: the interface
    ],
)
def test_the_rate_is_that_of_the_adapters_that_the_ranks_use(
    ndr: Fabric, gpus: int, adapters: int, ranks: int, gbit_per_s: float
) -> None:
    fabric = replace(ndr, gpus=ndr.gpus[:gpus])
    found = link_bytes_per_s(fabric, fabric.compute_adapters[:adapters], "eth0", ranks)
    assert found == pytest.approx(gbit_per_s * GBIT, rel=1e-4)


def test_a_narrow_slot_limits_its_adapter(ndr: Fabric) -> None:
    fabric = with_lanes(ndr, adapters=8)
    found = link_bytes_per_s(fabric, fabric.compute_adapters, None, 8)
    assert found == pytest.approx((7 * 400 + 252.06) * GBIT, rel=1e-4)


def test_narrow_slots_of_gpus_limit_their_node(ndr: Fabric) -> None:
    narrow = replace(ndr, gpus=tuple(replace(each, pci=replace(each.pci, lanes=8)) for each in ndr.gpus))
    found = link_bytes_per_s(narrow, narrow.compute_adapters, None, 8)
    assert found == pytest.approx(8 * 252.06 * GBIT, rel=1e-4)
    with_c2c = replace(narrow, gpus=tuple(replace(each, has_c2c=True) for each in narrow.gpus))
    assert link_bytes_per_s(with_c2c, with_c2c.compute_adapters, None, 8) == 3200 * GBIT
    unknown = replace(narrow, gpus=(replace(narrow.gpus[0], pci=PciDevice("0")), *narrow.gpus[1:]))
    assert link_bytes_per_s(unknown, unknown.compute_adapters, None, 8) == 3200 * GBIT


def test_the_slot_of_an_interface(ndr: Fabric) -> None:
    slow = PciDevice("1", link_gt_per_s=8.0, lanes=4)
    fabric = replace(ndr, interfaces=(replace(ETHERNET, pci=slow),))
    assert link_bytes_per_s(fabric, (), "eth0", 1) == pytest.approx(31.5 * GBIT, rel=1e-3)


def test_both_ends_of_a_pcie_link_limit_its_speed(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    port = tree.device(["pci0000:00", "0000:00:01.0"], vendor=INTEL, device="0x1", kind="0x060400")
    tree.write(f"{port}/max_link_speed", "8.0 GT/s PCIe")
    tree.gpu(["pci0000:00", "0000:00:01.0", "0000:01:00.0"])
    found = read_pci_device(FileTree(tmp_path), "/sys/bus/pci/devices/0000:01:00.0")
    assert found is not None
    assert found.link_max_gt_per_s == 8.0


def reading(paths: Sequence[str], capability: tuple[int, int] = (9, 0), nvlinks: int = 18) -> NvmlReading:
    """GPUs of which the pairs (0, 1), (0, 2), ... have these paths."""
    count = {1: 2, 3: 3, 6: 4}[len(paths)]
    gpus = tuple(
        Gpu(PciDevice(str(number)), compute_capability=capability, nvlinks_active=nvlinks)
        for number in range(count)
    )
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    links = [
        GpuLink(str(first), str(second), path) for (first, second), path in zip(pairs, paths, strict=True)
    ]
    return NvmlReading("550", gpus, tuple(links))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (reading(["NV18"] * 6), (450e9, True)),
        (reading(["NV18"]), (450e9, False)),
        (reading(["NV12"] * 6, (8, 0), 12), (300e9, False)),  # this NVSwitch does not add
        (reading(["NV4"] * 6, (8, 0), 12), (300e9, False)),  # direct: 4 links to each of 3 peers
        (reading(["NV4"], (8, 0), 12), (100e9, False)),  # two of these GPUs
        (reading(["NV4"], (8, 6), 4), (56.25e9, False)),
        (reading(["NV4"], (13, 0), 4), None),  # unknown NVLinks
        (reading(["PIX", "SYS", "SYS"]), None),
        (reading(["NV4", "SYS", "SYS", "SYS", "SYS", "NV4"]), None),  # two bridges
        (reading(["NV1", "NV1", "SYS"], (7, 0), 2), None),  # a chain
    ],
)
def test_nvlink_between_gpus(found: NvmlReading, expected: tuple[float, bool] | None) -> None:
    assert nvlink(found, len(found.gpus)) == expected
    assert nvlink(found, 1) is None
    assert nvlink(found, 9) is None, "more ranks than GPUs that NVML lists"
