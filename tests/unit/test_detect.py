"""Detection of fabrics. The descriptions of whole trees are in tests/golden/fabric-trees.txt; here is what
those trees do not hold, and odd files."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.detect import detect, detect_here
from jobs.fabric.gpus import NvmlReading
from tests.support.fabric_tree_builder import H100, MELLANOX, Tree, at_root
from tests.support.fabric_trees import tree


def test_routes_and_interfaces(tmp_path):
    t = Tree(tmp_path)
    t.ethernet("eth0", at_root(1), 1000)
    t.interface("veth1", None, speed=-1)
    t.write("/sys/class/net/bonding_masters", "bond0")
    routes = (tmp_path / "proc/net/route").read_text() + "".join(
        f"{name}\t{network}\t{gateway}\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"
        for name, network, gateway, flags, metric, mask in (
            ("veth1", "00000000", "0100000A", "0003", 200, "00000000"),  # of two default routes the cheaper
            ("veth1", "00000000", "0100000A", "0002", 0, "00000000"),  # it is down
            ("veth1", "00000000", "0100000A", "0003", 0, "00000080"),  # half of all addresses
            ("veth1", "0000010A", "00000000", "0001", 0, "0000FFFF"),
            ("veth1", "0000FEA9", "00000000", "0001", 0, "0000FFFF"),  # link-local
            ("veth1", "0500000A", "00000000", "0001", 0, "FFFFFFFF"),  # a single host
            ("veth1", "what", "00000000", "0001", 0, "00FFFFFF"),
        )
    )
    t.write("/proc/net/route", routes)
    interfaces = {each.name: each for each in detect(tmp_path).interfaces}
    assert {name: each.networks for name, each in interfaces.items()} == {
        "eth0": ("10.0.0.0/24",), "veth1": ("10.1.0.0/16",),
    }  # fmt: skip
    assert [name for name, each in interfaces.items() if each.is_default_route] == ["eth0"]
    assert interfaces["veth1"].speed_mbit_per_s is None


def test_each_of_two_ports_has_its_own_interface(tmp_path):
    """RoCE by its addresses; where only the device is known, a port has the only interface beside it."""
    t = Tree(tmp_path)
    pci = t.device(at_root(1), vendor=MELLANOX, device="0x1", kind="0x020000", driver="mlx5_core")
    for name in ("eth1", "eth2"):
        t.interface(name, pci, speed=25_000)
    t.rdma("mlx5_0", pci, "25 Gb/sec", layer="Ethernet", gids=[("fe80::1", "RoCE v2", "eth1")])
    ports = tmp_path / "sys/class/infiniband/mlx5_0/ports"
    (ports / "2").mkdir()
    (ports / "2/link_layer").write_text("Ethernet\n")

    def interfaces() -> list[tuple[str, ...]]:
        return [port.interfaces for port in detect(tmp_path).adapters[0].ports]

    assert interfaces() == [("eth1",), ()]
    shutil.rmtree(ports / "1")
    assert interfaces() == [("eth1", "eth2")]


def test_nvml_is_the_given_one_or_the_recorded_one_or_none(tmp_path):
    root = tree("cxi", tmp_path)

    def paths(fabric: Fabric) -> set[str]:
        return {link.path for link in fabric.gpu_links}

    assert paths(detect(root)) == {"NV6"}
    given = detect(root, nvml=NvmlReading("1.2"))
    assert (paths(given), given.gpus[0].compute_capability) == ({"SYS"}, None)
    for text in ("[]", "{", '{"gpus": [3]}', '{"gpus": [{"name": "x"}]}', '{"links": [{"a": 1}]}', "1e999"):
        (root / "nvml.json").write_text(text)
        odd = detect(root)
        assert (len(odd.gpus), paths(odd), odd.has_c2c) == (4, {"SYS"}, True), "C2C by the PCI device"
        assert (odd.gpus[0].uuid or "").startswith("GPU-"), "as the driver names it"


def test_gpus_of_a_container_that_hides_the_pci_bus(tmp_path):
    root = tree("nvlink", tmp_path)
    shutil.rmtree(root / "sys/bus/pci/devices")
    node = detect(root)
    assert [(gpu.name, gpu.pci.numa_node) for gpu in node.gpus] == [("NVIDIA H200", None)] * 8
    assert {link.path for link in node.gpu_links} == {"NV18"}


def test_graphics_of_other_kinds_are_no_gpus(tmp_path):
    t = Tree(tmp_path)
    nvidia, amd = ("0x030000", "0x030200", "0x040300"), ("0x038000", "0x120000", "0x030000")
    for bus, kind in enumerate(nvidia + amd):
        vendor = "0x10de" if bus < len(nvidia) else "0x1002"
        t.device(at_root(0x10 + 2 * bus), vendor=vendor, device=H100, kind=kind)
    assert [gpu.pci.address for gpu in detect(tmp_path).gpus] == [
        f"0000:{bus:02x}:00.0" for bus in (0x11, 0x13, 0x17, 0x19)
    ]


def test_an_empty_root_is_a_node_without_a_network(tmp_path):
    node = detect(tmp_path / "missing")
    assert node == detect(tmp_path)
    assert (node.kind, node.adapters, node.interfaces, node.gpus) == (FabricKind.NONE, (), (), ())


def test_this_machine(replay):
    replay()
    node = detect_here()
    assert (node.software.kernel, len(node.gpus)) == (os.uname().release, 0)
    json.dumps(dataclasses.asdict(node))


_ODD = (b"", b"-1\n", b"\xff\xfe\x00garbage\n", b"9" * 400, b"0x\n", b"4: \n", b": : :\n", b"0-99999999999\n")


def _spoil(file: Path, chance: random.Random) -> None:
    """Make a file odd: other content, missing, a folder, a pipe, a link in a loop or out of the tree."""
    kind = chance.choice(("content", "content", "missing", "folder", "pipe", "loop", "outside", "denied"))
    if kind == "content":
        file.write_bytes(chance.choice(_ODD))
        return
    if kind == "denied":
        file.chmod(0)  # root reads it all the same
        return
    file.unlink()
    makers: dict[str, Callable[[], object]] = {
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "loop": lambda: file.symlink_to(file.name),
        "outside": lambda: file.symlink_to("/etc/hostname"),
    }
    makers.get(kind, lambda: None)()


@pytest.mark.parametrize("kind", ["roce_bond", "efa_p5", "cxi", "hdr_mixed"])
def test_odd_files_raise_nothing(kind, tmp_path):
    chance = random.Random(kind)
    root = tree(kind, tmp_path)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for share in (0.2, 0.5):
        for file in chance.sample(files, round(share * len(files))):
            if file.is_file() and not file.is_symlink() and os.access(file, os.W_OK):
                _spoil(file, chance)
        json.dumps(dataclasses.asdict(detect(root)))
