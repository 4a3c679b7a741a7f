"""Detection of fabrics on copies of the kernel's files."""

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
from jobs.fabric.software import Process
from tests.support.fabric_tree_builder import Tree
from tests.support.fabric_trees import KINDS, hdr_mixed, ndr, tree

Detected = Callable[[str], Fabric]


@pytest.mark.parametrize(
    ("kind", "fabric", "compute", "rate", "gpus", "paths"),
    [
        ("ndr", FabricKind.INFINIBAND, 8, 400, 8, {"NV18"}),
        ("dead_hca", FabricKind.INFINIBAND, 6, 400, 8, {"NV18"}),
        ("hdr_mixed", FabricKind.INFINIBAND, 8, 200, 8, {"NV12"}),
        ("roce_bond", FabricKind.ROCE, 4, 200, 4, {"NV12"}),
        ("efa_p5", FabricKind.EFA, 32, 100, 8, {"NV18"}),
        ("cxi", FabricKind.SLINGSHOT, 4, 200, 4, {"NV6"}),
        ("ethernet_25g", FabricKind.ETHERNET, 0, None, 2, {"SYS"}),
        ("ethernet_two", FabricKind.ETHERNET, 0, None, 1, set()),
        ("all_down", FabricKind.ETHERNET, 0, None, 8, {"NV18"}),
        ("nvlink", FabricKind.ETHERNET, 0, None, 8, {"NV18"}),
        ("pcie", FabricKind.ETHERNET, 0, None, 2, {"NODE"}),
        ("cpu", FabricKind.ETHERNET, 0, None, 0, set()),
    ],
)
def test_each_network_is_recognized(
    kind: str,
    fabric: FabricKind,
    compute: int,
    rate: float | None,
    gpus: int,
    paths: set[str],
    fabric_of: Detected,
) -> None:
    node = fabric_of(kind)
    assert node.kind == fabric
    assert len(node.compute_adapters) == compute
    assert {each.rate_gbit_per_s for each in node.compute_adapters} == ({rate} if rate else set())
    assert len(node.gpus) == gpus
    assert {link.path for link in node.gpu_links} == paths
    assert len(node.gpu_links) == gpus * (gpus - 1) // 2
    assert node.host == "node7"
    assert all(each.reason for each in node.adapters)


def test_every_tree_is_tested() -> None:
    parameters = test_each_network_is_recognized.pytestmark[0].args[1]
    assert {each[0] for each in parameters} == set(KINDS)


def test_the_vendor_is_not_repeated(fabric_of: Detected) -> None:
    assert fabric_of("cxi").product == "HPE Cray EX254n"
    assert fabric_of("efa_p5").product == "Amazon EC2 p5.48xlarge"


def test_places_of_devices(fabric_of: Detected) -> None:
    node = fabric_of("ndr")
    adapter, gpu = node.adapters[5], node.gpus[5]
    assert adapter.pci is not None
    assert (adapter.pci.numa_node, adapter.pci.cores[:2], adapter.pci.vendor) == (1, (48, 49), "0x15b3")
    assert (gpu.pci.link_gt_per_s, gpu.pci.lanes, gpu.pci.lanes_max) == (32.0, 16, 16)
    assert (gpu.name, gpu.compute_capability, gpu.nvlinks_active) == ("NVIDIA H100 80GB HBM3", (9, 0), 18)
    assert adapter.driver == "mlx5_core"
    assert (adapter.firmware, adapter.board) == ("28.39.1002", "MT_0000000838")
    assert adapter.evidence == "/sys/class/infiniband/mlx5_5"
    port = adapter.active_port
    assert port is not None
    assert (port.state, port.physical_state, port.lanes, port.link_downed) == ("ACTIVE", "LinkUp", 4, 0)
    assert node.default_interface is not None
    assert node.default_interface.speed_mbit_per_s == 100_000


def test_the_gpu_has_its_name_from_the_driver_without_nvml(fabric_of: Detected) -> None:
    gpu = fabric_of("pcie").gpus[0]
    assert gpu.name == "NVIDIA L40S"
    assert (gpu.uuid or "").startswith("GPU-")


def test_grace_hopper_has_c2c_also_without_nvml(tmp_path: Path, fabric_of: Detected) -> None:
    assert detect(tree("cxi", tmp_path)).has_c2c
    (tmp_path / "nvml.json").unlink()
    node = detect(tmp_path)
    assert node.has_c2c
    assert {link.path for link in node.gpu_links} == {"SYS"}
    assert not fabric_of("ndr").has_c2c


def test_a_bond_and_its_members(fabric_of: Detected) -> None:
    node = fabric_of("roce_bond")
    by_name = {each.name: each for each in node.interfaces}
    assert by_name["bond0"].is_default_route
    assert by_name["bond0"].members == ("ens1f0", "ens1f1")
    assert not by_name["bond0"].is_virtual
    assert by_name["ens1f0"].master == "bond0"
    port = node.compute_adapters[0].active_port
    assert port is not None
    assert port.interfaces == ("eth2",)
    routable = [gid.index for gid in port.gids if gid.type == "RoCE v2" and ":ffff:" in gid.address]
    assert routable == [3]


def test_products_and_limits(fabric_of: Detected) -> None:
    p5 = fabric_of("efa_p5")
    assert p5.product == "Amazon EC2 p5.48xlarge"
    assert (p5.software.memory_lock, p5.software.memory_lock_bytes) == ("unlimited", None)
    assert (p5.software.has_peermem, p5.software.has_gdrcopy) == (True, False)
    bond = fabric_of("roce_bond")
    assert bond.software.memory_lock_bytes == 65536


def test_a_recorded_reading_gives_way_to_a_given_one(shared_tree: Callable[[str], Path]) -> None:
    node = detect(shared_tree("ndr"), nvml=NvmlReading(driver="1.2"))
    assert {link.path for link in node.gpu_links} == {"NODE", "SYS"}
    assert node.gpus[0].compute_capability is None


def test_gpus_of_a_container_that_hides_the_pci_bus(tmp_path: Path) -> None:
    root = tree("nvlink", tmp_path)
    shutil.rmtree(root / "sys/bus/pci/devices")
    node = detect(root)
    assert [gpu.name for gpu in node.gpus] == ["NVIDIA H200"] * 8
    assert {link.path for link in node.gpu_links} == {"NV18"}
    assert (node.gpus[0].pci.address, node.gpus[0].pci.numa_node) == ("0000:13:00.0", None)


def test_the_environment_of_the_process_is_part_of_the_description(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    ndr(t)
    t.write("/scratch/nccl.conf", "NCCL_IB_TIMEOUT=14")
    process = Process({"NCCL_CONF_FILE": "/scratch/nccl.conf"})
    assert [each.path for each in detect(tmp_path, process).software.nccl_files] == ["/scratch/nccl.conf"]
    assert detect(tmp_path).software.nccl_files == ()


def test_an_empty_root_is_a_node_without_a_network(tmp_path: Path) -> None:
    node = detect(tmp_path)
    assert node.kind == FabricKind.NONE
    assert (node.adapters, node.interfaces, node.gpus, node.product, node.host) == ((), (), (), None, None)
    assert detect(tmp_path / "missing").kind == FabricKind.NONE


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.fabric.detect.read_nvml", lambda: None)
    node = detect_here()
    assert node.software.kernel == os.uname().release
    json.dumps(dataclasses.asdict(node))


_ODD = (
    b"",
    b"\n",
    b"-1\n",
    b"\xff\xfe\x00garbage\n",
    b"9" * 400,
    b"0x\n",
    b"4: \n",
    b": : :\n",
    b"0-99999999999\n",
)


def _spoil(file: Path, chance: random.Random) -> None:
    """Make a file odd: other content, missing, a folder, a pipe, a link in a loop or out of the tree."""
    kind = chance.choice(("content", "content", "missing", "folder", "pipe", "loop", "outside", "denied"))
    if kind == "content":
        file.write_bytes(chance.choice(_ODD))
    elif kind == "denied":
        file.chmod(0)  # root reads it all the same
    else:
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "pipe":
            os.mkfifo(file)
        elif kind == "loop":
            file.symlink_to(file.name)
        elif kind == "outside":
            file.symlink_to("/etc/hostname")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_odd_files_raise_nothing(kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    root = tree(kind, tmp_path)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for share in (0.2, 0.5):
        for file in chance.sample(files, round(share * len(files))):
            if file.is_file() and not file.is_symlink() and os.access(file, os.W_OK):
                _spoil(file, chance)
        json.dumps(dataclasses.asdict(detect(root)))


def test_odd_readings_of_nvml_are_left_out(tmp_path: Path) -> None:
    root = tree("nvlink", tmp_path)
    for text in ("[]", "{", '{"gpus": [3]}', '{"gpus": [{"name": "x"}]}', '{"links": [{"a": 1}]}', "1e999"):
        (root / "nvml.json").write_text(text)
        assert len(detect(root).gpus) == 8


def test_storage_adapters_stay_out_while_a_compute_adapter_is_down(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    hdr_mixed(t)
    state = tmp_path / "sys/class/infiniband/mlx5_2/ports/1/state"
    state.write_text("1: DOWN\n")
    names = [each.name for each in detect(tmp_path).compute_adapters]
    assert names == ["mlx5_0", "mlx5_1", *(f"mlx5_{index}" for index in range(3, 8))]
