"""Facts of a node: comparable between nodes, and without a finding where nothing is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.checks import node_facts
from jobs.checks.gpu_health import NodeGpus, read_node_gpus
from jobs.checks.node_facts import NodeFacts
from jobs.core import child_process
from jobs.fabric.description import (
    Adapter,
    AdapterKind,
    ConfigurationFile,
    Fabric,
    FabricKind,
    Gpu,
    Interface,
    PciDevice,
    Port,
    Software,
)


def adapter(name: str, rate: float = 400.0, *, for_compute: bool = True) -> Adapter:
    port = Port(1, "InfiniBand", "ACTIVE", "LinkUp", rate, f"{rate:g} Gb/sec")
    return Adapter(
        name, AdapterKind.VERBS, "mlx5_core", None, None, (port,), f"/sys/{name}", for_compute=for_compute
    )


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(PciDevice(str(number))) for number in range(count))


ETHERNET = Interface("eth0", "up", 1, 100_000, 9000, "ice", None)
NODE = Fabric(
    FabricKind.INFINIBAND,
    (*(adapter(f"mlx5_{number}") for number in range(8)), adapter("mlx5_8", 200, for_compute=False)),
    (ETHERNET,),
    gpus(8),
    software=Software(nccl_version="2.27.5", nvidia_driver="550.54"),
)


def test_names_of_adapters_storage_adapters_and_gpus_of_the_bus_are_not_compared() -> None:
    renamed = tuple(adapter(f"vf{number}") for number in range(8))
    other = replace(NODE, adapters=renamed, gpus=gpus(4))
    assert node_facts.agreement(other, wants_gpus=True) == node_facts.agreement(NODE, wants_gpus=True)
    assert node_facts.agreement(NODE, wants_gpus=True)["adapters"] == "8 x InfiniBand ACTIVE 400 Gb/sec"


def test_runs_without_gpus_do_not_compare_nccl_and_its_network() -> None:
    assert node_facts.agreement(NODE, wants_gpus=False).keys() <= {"code", "Python", "machine", "torch"}


@pytest.mark.parametrize(
    ("environ", "file", "count"),
    [
        ({}, (), 8),
        ({"NCCL_IB_DISABLE": "1"}, (), 0),
        ({"NCCL_NET": "Socket"}, (), 0),
        ({}, (("NCCL_NET", "socket"),), 0),
        ({"NCCL_IB_DISABLE": "0"}, (("NCCL_IB_DISABLE", "1"),), 8),
    ],
)
def test_adapters_matter_unless_the_run_chooses_tcp(
    environ: dict[str, str], file: tuple[tuple[str, str], ...], count: int
) -> None:
    fabric = replace(NODE, software=Software(nccl_files=(ConfigurationFile("/etc/nccl.conf", file),)))
    assert collected(fabric, environ=environ).tcp == (count == 0)


@pytest.fixture(autouse=True)
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "has_driver", lambda: True)
    monkeypatch.setattr(node_facts, "node_gpus", lambda: NodeGpus(8))


def collected(fabric: Fabric = NODE, node: int = 0, device: str = "cuda", **changes: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "environ": {}, "interface": None, "agreed": {}, "folders": [], "rate_folder": None,
        "missing_gpus": None, "is_alone": False,
    }  # fmt: skip
    config = {"resources": {"nodes": 1, "gpus_per_node": 1, "device": device}}
    return node_facts.collect(node, "n", config, fabric, **{**values, **changes})


@pytest.mark.parametrize("uses_nccl", [False, True])
def test_a_run_over_tcp_does_not_need_locked_memory(uses_nccl: bool) -> None:
    facts = collected(device="cuda" if uses_nccl else "cpu")
    assert (facts.rdma, facts.tcp) == (uses_nccl, not uses_nccl)


@pytest.mark.parametrize(
    ("kind", "plugin", "needed"),
    [
        ("ndr", "none", True),
        ("efa_p5", "", False),  # its plugin is not on the path of libraries
        ("efa_p5", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", True),
        ("cxi", "", False),
        ("pcie", "", False),
    ],
)
def test_adapters_that_need_locked_memory(
    kind: str, plugin: str, needed: bool, fabric_of: Callable[[str], Fabric]
) -> None:
    fabric = fabric_of(kind)
    settings = {"NCCL_NET_PLUGIN": plugin}
    assert (
        node_facts._network_facts(fabric, fabric.compute_adapters, settings, uses_nccl=True)["rdma"] == needed
    )


def test_locked_memory_of_efa_whose_plugin_is_reachable(fabric_of: Callable[[str], Fabric]) -> None:
    efa = fabric_of("efa_p5")
    reachable = tuple(replace(each, is_reachable=True) for each in efa.software.nccl_plugins)
    fabric = replace(efa, software=replace(efa.software, nccl_plugins=reachable))
    assert node_facts._network_facts(fabric, fabric.compute_adapters, {}, uses_nccl=True)["rdma"]


def test_defects_of_a_network_that_the_run_uses(fabric_of: Callable[[str], Fabric]) -> None:
    dead = fabric_of("dead_hca")
    dead = replace(dead, software=replace(dead.software, memory_lock_bytes=65536))
    for environ, names in (({}, ["mlx5_3", "mlx5_6"]), ({"NCCL_NET": "Socket"}, [])):
        facts = collected(dead, environ=environ)
        defects = [line.partition(":")[0] for line in facts.defects]
        assert defects == names, "the memory lock has its own check"
        assert facts.memory_lock_bytes == 65536


@pytest.mark.parametrize(("uses_nccl", "count"), [(True, 1), (False, 0)])
def test_a_node_all_of_whose_adapters_are_down(
    uses_nccl: bool, count: int, fabric_of: Callable[[str], Fabric]
) -> None:
    found = node_facts._network_facts(fabric_of("all_down"), (), {}, uses_nccl=uses_nccl)
    assert len(found["defects"]) == count


def test_a_node_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert read_node_gpus(tmp_path) == NodeGpus(0)


def test_only_the_first_nodes_measure_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "storage_rates", lambda folder, node: (1.0, 2.0))
    for node, expected in ((7, 1.0), (8, None)):
        assert collected(node=node, rate_folder=tmp_path).write_bytes_per_s == expected


def test_a_file_system_without_a_size_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=0))
    assert node_facts._free_space([tmp_path]) == {}


def test_a_child_that_cannot_be_killed_does_not_hold_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(process, "kill", lambda: None)
    began = time.monotonic()
    try:
        child_process.end([process], within_s=0.1)
        assert time.monotonic() - began < 30
    finally:
        process.terminate()
        process.wait()


def test_the_output_of_a_child_and_its_failures() -> None:
    assert child_process.output([sys.executable, "-c", "print(3)"], 60) == "3\n"
    with pytest.raises(subprocess.CalledProcessError):
        child_process.output([sys.executable, "-c", "raise SystemExit(2)"], 60)
    with pytest.raises(subprocess.TimeoutExpired):
        child_process.output([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)


def test_rates_of_storage_leave_no_file(tmp_path: Path) -> None:
    written, read = node_facts.storage_rates(tmp_path, 3)
    assert written > 0
    assert read > 0
    assert list(tmp_path.iterdir()) == []


def test_slow_storage_gets_a_smaller_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(node_facts.os, "fsync", lambda file: flushed.append(os.fstat(file).st_size))
    monkeypatch.setattr(node_facts, "_NO_PART_AFTER_S", 0.0)
    node_facts.storage_rates(tmp_path, 0)
    assert flushed == [2**20]
    monkeypatch.setattr(node_facts, "_NO_PART_AFTER_S", 60.0)
    node_facts.storage_rates(tmp_path, 0)
    assert flushed[1:] == [2**20, 2**22, 2**24]
