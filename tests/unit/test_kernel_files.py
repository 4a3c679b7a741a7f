"""Reading of the kernel's files below a root, and places of devices on the PCI bus."""

from __future__ import annotations

import pytest

from jobs.fabric.description import PciDevice
from jobs.fabric.kernel_files import (
    FileTree,
    parse_cores,
    parse_float,
    parse_integer,
    pci_path,
    read_pci_device,
)
from tests.support.fabric_tree_builder import AMAZON, Tree


def test_links_stay_within_the_root(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (tmp_path / "outside").write_text("secret\n")
    (root / "etc/inside").write_text(" text \n")
    (root / "etc/away").symlink_to(tmp_path / "outside")
    (root / "etc/near").symlink_to("inside")
    tree = FileTree(root)
    assert (tree.text("/etc/near"), tree.real_path("/etc/near")) == ("text", "/etc/inside")
    assert (tree.text("/etc/away"), tree.exists("/etc/away")) == (None, False)
    assert (tree.text("/../outside"), tree.text("/etc/\0")) == (None, None)


def test_names_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("mlx5_10", "mlx5_bond_0", "mlx5_2"):
        (tmp_path / name).touch()
    assert FileTree(tmp_path).names("/") == ["mlx5_2", "mlx5_10", "mlx5_bond_0"]


@pytest.mark.parametrize(
    ("parse", "results"),
    [
        (parse_integer, {"0x15b3": 0x15B3, "-1": -1, "25": 25, "x": None, None: None, "²": None, "0x": None}),
        (parse_float, {"2.5 GT/s PCIe": 2.5, "400 Gb/sec (4X NDR)": 400.0, "Unknown": None, None: None}),
        (
            parse_cores,
            {"0-2,8": (0, 1, 2, 8), "7": (7,), "": (), None: (), "3-1": (), "0-99999999": (), "a": ()},
        ),
    ],
)  # fmt: skip
def test_values_of_files(parse, results):
    assert {text: parse(text) for text in results} == results


def device(*path: str, node: int | None = 0) -> PciDevice:
    return PciDevice(path[-1], path, numa_node=node)


FIRST = device("h0", "root0", "up0", "down0", "a")


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (FIRST, device("h0", "root0", "up0", "down1", "b"), "PIX"),
        (FIRST, device("h0", "root0", "up0", "down1", "up2", "down3", "b"), "PXB"),
        (FIRST, device("h0", "root1", "b"), "PHB"),
        (FIRST, device("h1", "root0", "b"), "NODE"),
        (FIRST, device("h1", "root0", "b", node=1), "SYS"),
        (device("h0", "a", node=None), device("h1", "b", node=None), "NODE"),
    ],
)
def test_paths_between_devices(first, second, path):
    assert pci_path(first, second) == pci_path(second, first) == path


def test_a_device_on_another_bus_counts_as_the_pci_device_above_it(tmp_path):
    """A virtio interface below a port that is slower than the device; the kernel knows no NUMA node."""
    t, above = Tree(tmp_path), ["pci0000:00", "0000:00:01.0", "0000:01:00.0"]
    port = t.device(above[:2], vendor=AMAZON, device="0x1", kind="0x060400")
    t.write(f"{port}/max_link_speed", "8.0 GT/s PCIe")
    pci = t.device(above, vendor=AMAZON, device="0x1041", kind="0x020000", node=-1)
    t.write(f"{pci}/current_link_width", "255")
    t.write(f"{pci}/virtio2/uevent", "")
    t.link("/sys/class/net/eth0", f"{pci}/virtio2/net/eth0")
    t.link(f"{pci}/virtio2/net/eth0/device", f"{pci}/virtio2")
    assert read_pci_device(FileTree(tmp_path), "/sys/class/net/eth0/device") == PciDevice(
        "0000:01:00.0", tuple(above), AMAZON, "0x1041", cores=tuple(range(96)),
        link_gt_per_s=32.0, link_max_gt_per_s=8.0, lanes_max=16,
    )  # fmt: skip
    assert read_pci_device(FileTree(tmp_path), "/sys/class/net/eth1/device") is None
