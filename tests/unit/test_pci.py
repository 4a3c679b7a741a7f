"""Places of PCI devices and the paths between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.description import PciDevice
from jobs.fabric.kernel_files import FileTree, parse_cores, pci_path, read_pci_device
from tests.support.fabric_tree_builder import AMAZON, Tree


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("7", (7,)),
        ("", ()),
        (None, ()),
        ("3-1", ()),
        ("0-", ()),
        ("0-99999999", ()),
        ("a", ()),
    ],
)
def test_lists_of_cores(text: str | None, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


def device(*path: str, node: int | None = 0) -> PciDevice:
    return PciDevice(path[-1], path, numa_node=node)


@pytest.mark.parametrize(
    ("other", "path"),
    [
        (("h0", "root0", "up0", "down1", "b"), "PIX"),
        (("h0", "root0", "up0", "down1", "up2", "down3", "b"), "PXB"),
        (("h0", "root1", "b"), "PHB"),
        (("h1", "root0", "b"), "NODE"),
    ],
)
def test_paths(other: tuple[str, ...], path: str) -> None:
    first = device("h0", "root0", "up0", "down0", "a")
    assert pci_path(first, device(*other)) == path
    assert pci_path(device(*other), first) == path


def test_paths_between_numa_nodes() -> None:
    first = device("h0", "root0", "a")
    assert pci_path(first, device("h1", "root1", "b", node=1)) == "SYS"
    assert pci_path(device("h0", "a", node=None), device("h1", "b", node=None)) == "NODE"


def test_a_device_on_another_bus_counts_as_the_pci_device_above_it(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    pci = t.device(["pci0000:00", "0000:00:03.0"], vendor=AMAZON, device="0x1041", kind="0x020000", node=-1)
    t.write(f"{pci}/virtio2/uevent", "")
    t.link("/sys/class/net/eth0", f"{pci}/virtio2/net/eth0")
    t.link(f"{pci}/virtio2/net/eth0/device", f"{pci}/virtio2")
    t.write(f"{pci}/current_link_width", "255")
    found = read_pci_device(FileTree(tmp_path), "/sys/class/net/eth0/device")
    assert found is not None
    assert (found.address, found.path) == ("0000:00:03.0", ("pci0000:00", "0000:00:03.0"))
    assert (found.numa_node, found.lanes) == (None, None)
