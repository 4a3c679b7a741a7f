"""Interfaces and the default route."""

from __future__ import annotations

from pathlib import Path

from jobs.fabric.detect import connected_networks, default_route_interface, read_interfaces
from jobs.fabric.kernel_files import FileTree
from tests.support.fabric_tree_builder import Tree, at_root
from tests.support.fabric_trees import tree


def test_speeds_states_and_drivers(tmp_path: Path) -> None:
    found = {each.name: each for each in read_interfaces(FileTree(tree("ethernet_25g", tmp_path)))}
    assert list(found) == ["docker0", "eno1", "eth0"]
    eth0 = found["eth0"]
    assert (eth0.speed_mbit_per_s, eth0.driver, eth0.is_up, eth0.is_virtual) == (25_000, "ice", True, False)
    assert (found["eno1"].is_up, found["eno1"].speed_mbit_per_s) == (False, None)
    assert found["docker0"].is_virtual
    assert [each.name for each in found.values() if each.is_default_route] == ["eth0"]


def test_ipoib(tmp_path: Path) -> None:
    found = {each.name: each for each in read_interfaces(FileTree(tree("hdr_mixed", tmp_path)))}
    assert (found["ib3"].is_ipoib, found["ib3"].speed_mbit_per_s, found["ib3"].mtu_bytes) == (
        True,
        None,
        2044,
    )


def test_networks_without_a_gateway(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.ethernet("eth0", at_root(1), 1000)
    for network, mask in (
        ("0000010A", "0000FFFF"),
        ("0000FEA9", "0000FFFF"),  # link-local
        ("0500000A", "FFFFFFFF"),  # a single host
        ("what", "00FFFFFF"),
    ):
        t.connected("eth1", network, mask)
    assert connected_networks(FileTree(tmp_path)) == {"eth0": ("10.0.0.0/24",), "eth1": ("10.1.0.0/16",)}
    assert [each.networks for each in read_interfaces(FileTree(tmp_path))] == [("10.0.0.0/24",)]


def test_a_negative_speed_is_unknown(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.interface("veth1", None, speed=-1)
    assert read_interfaces(FileTree(tmp_path))[0].speed_mbit_per_s is None


def test_the_default_route_has_the_lowest_metric(tmp_path: Path) -> None:
    lines = [
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT",
        "eth0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0",
        "hsn0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        "tun0\t00000000\t0100000A\t0003\t0\t0\t0\t00000080\t0\t0\t0",
        "off0\t00000000\t0100000A\t0002\t0\t0\t0\t00000000\t0\t0\t0",
    ]
    Tree(tmp_path).write("/proc/net/route", "\n".join(lines))
    assert default_route_interface(FileTree(tmp_path)) == "hsn0"


def test_a_file_beside_the_interfaces_is_none(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.ethernet("eth0", at_root(1), 1000)
    t.write("/sys/class/net/bonding_masters", "bond0")
    assert [each.name for each in read_interfaces(FileTree(tmp_path))] == ["eth0"]
