"""Facts of a node: comparable between nodes, rates of its links, and none where nothing can be read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.checks import node_facts
from jobs.checks.gpu_health import NodeGpus
from jobs.checks.node_facts import NodeFacts, agreement, link_bytes_per_s, nvlink, storage_rates
from jobs.checks.rank_python import RankPython
from jobs.core import child_process
from jobs.fabric.description import ConfigurationFile, Fabric, Gpu, GpuLink, Interface, PciDevice
from jobs.fabric.gpus import NvmlReading

Trees = Callable[[str], Fabric]
GBIT = 1e9 / 8
ETHERNET = Interface("eth0", "up", 1, 100_000, 9000, "ice", None)
PLUGIN = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"

PYTHON = RankPython(["python"], "3.12.1", (), {"torch": "2.2.0"})


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NodeFacts]:
    """`collected(fabric, ...)`: facts of a node whose driver has the GPUs of its fabric."""
    monkeypatch.setattr(node_facts, "has_driver", lambda: True)

    def collect(
        fabric: Fabric, node: int = 0, device: str = "cuda", ranks: int = 1, **changes: Any
    ) -> NodeFacts:
        monkeypatch.setattr(node_facts, "node_gpus", lambda: NodeGpus(8, (), NvmlReading(gpus=fabric.gpus)))
        values: dict[str, Any] = {
            "environ": {}, "interface": None, "agreed": {}, "folders": [], "rate_folder": None,
            "missing_gpus": None, "is_alone": False, "python": PYTHON,
        }  # fmt: skip
        config = {"resources": {"nodes": 1, "gpus_per_node": ranks, "device": device}}
        return node_facts.collect(node, "n", config, fabric, **{**values, **changes})

    return collect


def test_names_of_adapters_storage_adapters_and_gpus_of_the_bus_are_not_compared(fabric_of):
    node = fabric_of("hdr_mixed")
    renamed = tuple(replace(each, name=f"vf{each.name}") for each in node.adapters if each.for_compute)
    other = replace(node, adapters=renamed, gpus=node.gpus[:4])
    values = agreement(node, PYTHON, wants_gpus=True)
    assert agreement(other, PYTHON, wants_gpus=True) == values
    assert (values["Python"], values["torch"]) == ("3.12.1", "2.2.0")
    assert values["adapters"] == "8 x InfiniBand ACTIVE 200 Gb/sec (4X HDR), PCIe x16"
    assert values["NCCL configuration files"] == "NCCL_IB_TIMEOUT=22 NCCL_DEBUG=WARN"
    assert agreement(node, PYTHON, wants_gpus=False).keys() <= {"code", "Python", "machine", "torch"}


@pytest.mark.parametrize(
    ("kind", "device", "environ", "file", "rdma", "tcp", "defects"),
    [
        ("dead_hca", "cuda", {}, (), True, False, ["mlx5_3", "mlx5_6"]),
        ("dead_hca", "cpu", {}, (), False, True, []),
        ("dead_hca", "cuda", {"NCCL_NET": "Socket"}, (), False, True, []),
        ("dead_hca", "cuda", {}, (("NCCL_NET", "socket"),), False, True, []),
        ("ndr", "cuda", {"NCCL_IB_DISABLE": "0"}, (("NCCL_IB_DISABLE", "1"),), True, False, []),
        ("all_down", "cuda", {}, (), False, True, ["no adapter is active, so NCCL would use TCP"]),
        ("efa_p5", "cuda", {}, (), False, False, ["NCCL's plugin"]),  # it is not on the path of libraries
        ("efa_p5", "cuda", {"NCCL_NET_PLUGIN": PLUGIN}, (), True, False, []),
        ("cxi", "cuda", {"NCCL_NET_PLUGIN": PLUGIN}, (), False, False, []),
    ],
)  # fmt: skip
def test_facts_of_the_network_that_a_run_uses(
    kind, device, environ, file, rdma, tcp, defects, fabric_of, collected
):
    """The limit of locked memory has a check of its own."""
    software = replace(
        fabric_of(kind).software,
        memory_lock_bytes=65536,
        nccl_files=(ConfigurationFile("/etc/nccl.conf", file),),
    )
    facts = collected(replace(fabric_of(kind), software=software), device=device, environ=environ)
    assert (facts.rdma, facts.tcp, facts.memory_lock_bytes) == (rdma, tcp, 65536)
    assert [line[: len(start)] for line, start in zip(facts.defects, defects, strict=True)] == defects


def test_processors_near_the_gpus_of_the_ranks(fabric_of, collected, monkeypatch):
    """Four GPUs on each NUMA node of 48 processors; a machine that other work shares has no verdict."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for ranks, alone, far in ((6, True, [4, 5]), (3, True, []), (6, False, ())):
        facts = collected(fabric_of("ndr"), ranks=ranks, is_alone=alone)
        assert (facts.far_from_gpus, facts.processors) == (far, 8)


def test_free_space_is_that_of_a_user(fabric_of, collected, tmp_path, monkeypatch):
    """Of the nearest folder that exists. FUSE file systems without a size report zeros."""
    folder = tmp_path / "not" / "there"
    for blocks, expected in ((1, {str(folder): 12}), (0, {})):
        space = SimpleNamespace(f_blocks=blocks, f_bfree=9, f_bavail=3, f_frsize=4, f_bsize=5)
        monkeypatch.setattr(os, "statvfs", lambda path, space=space: {tmp_path: space}[path])
        assert collected(fabric_of("cpu"), folders=[folder]).free_bytes == expected


@pytest.mark.parametrize(("first_part_s", "mib"), [(0.1, 16), (0.6, 1)])
def test_rates_of_storage(first_part_s, mib, tmp_path, monkeypatch):
    """Slow storage gets a smaller file. No file is left."""
    times = [0.0, first_part_s, *([0.2, 0.4] if mib > 1 else []), 1.0, 1.2]
    monkeypatch.setattr(time, "perf_counter", iter(times).__next__)
    write_s = 0.4 if mib > 1 else first_part_s
    assert storage_rates(tmp_path, 3) == pytest.approx((mib * 2**20 / write_s, mib * 2**20 / 0.2))
    monkeypatch.undo()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("node", "measures"), [(7, True), (8, False)])
def test_only_the_first_nodes_measure_storage(node, measures, fabric_of, collected, tmp_path):
    facts = collected(fabric_of("cpu"), node=node, rate_folder=tmp_path)
    assert (facts.write_bytes_per_s is not None, facts.read_bytes_per_s is not None) == (measures, measures)
    missing = collected(fabric_of("cpu"), rate_folder=tmp_path / "missing")
    assert missing.write_bytes_per_s is None


@pytest.fixture
def ndr(fabric_of: Trees) -> Fabric:
    """Eight GPUs and eight adapters of 400 Gbit/s, each on 504 Gbit/s of PCIe."""
    return replace(fabric_of("ndr"), interfaces=(ETHERNET,))


@pytest.mark.parametrize(
    ("gpus", "adapters", "ranks", "gbit_per_s"),
    [
        (8, 8, 8, 3200),
        (8, 8, 1, 400),  # one rank does not reach the sum of all adapters
        (2, 8, 1, 504.123),  # four adapters for each GPU, and its slot
        (8, 2, 8, 800),
        (0, 8, 8, 3200),  # a container hides the PCI bus
        (8, 0, 8, 100),  # TCP: the interface
    ],
)
def test_the_rate_is_that_of_the_adapters_that_the_ranks_use(ndr, gpus, adapters, ranks, gbit_per_s):
    fabric = replace(ndr, gpus=ndr.gpus[:gpus])
    found = link_bytes_per_s(fabric, fabric.compute_adapters[:adapters], "eth0", ranks)
    assert found == pytest.approx(gbit_per_s * GBIT, rel=1e-4)


def narrow(pci: PciDevice | None) -> PciDevice:
    assert pci is not None
    return replace(pci, lanes=8)


def test_narrow_slots_limit_adapters_gpus_and_interfaces(ndr):
    def rate(fabric: Fabric, *, tcp: bool = False) -> Any:
        found = link_bytes_per_s(fabric, () if tcp else fabric.compute_adapters, "eth0", 8)
        return pytest.approx((found or 0) / GBIT, rel=1e-4)

    first, *others = ndr.adapters
    assert rate(replace(ndr, adapters=(replace(first, pci=narrow(first.pci)), *others))) == 7 * 400 + 252.06
    slow = replace(ndr, gpus=tuple(replace(gpu, pci=narrow(gpu.pci)) for gpu in ndr.gpus))
    assert rate(slow) == 8 * 252.06
    assert rate(replace(slow, gpus=tuple(replace(gpu, has_c2c=True) for gpu in slow.gpus))) == 3200
    assert rate(replace(slow, gpus=(replace(slow.gpus[0], pci=PciDevice("0")), *slow.gpus[1:]))) == 3200
    pci = PciDevice("1", link_gt_per_s=8.0, lanes=4)
    assert rate(replace(ndr, interfaces=(replace(ETHERNET, pci=pci),)), tcp=True) == 31.508
    virtual = replace(ETHERNET, driver=None)
    assert rate(replace(ndr, interfaces=(virtual,)), tcp=True) == 0


H100, A100, A40 = (9, 0), (8, 0), (8, 6)


@pytest.mark.parametrize(
    ("paths", "capabilities", "nvlinks", "expected"),
    [
        (["NV18"] * 6, [H100] * 4, 18, (450e9, True)),
        (["NV18"], [H100] * 2, 18, (450e9, False)),
        (["NV12"] * 6, [A100] * 4, 12, (300e9, False)),  # this NVSwitch does not add
        (["NV4"] * 6, [A100] * 4, 12, (300e9, False)),  # direct: 4 links to each of 3 peers
        (["NV4"], [A100, A40], 12, (56.25e9, False)),
        (["NV4"], [(13, 0)] * 2, 4, None),  # unknown NVLinks
        (["NV4", "SYS", "SYS", "SYS", "SYS", "NV4"], [A100] * 4, 12, None),  # two bridges
    ],
)
def test_nvlink_between_gpus(paths, capabilities, nvlinks, expected):
    """Paths of the pairs (0, 1), (0, 2), ..."""
    count = len(capabilities)
    gpus = tuple(
        Gpu(PciDevice(str(number)), compute_capability=capability, nvlinks_active=nvlinks)
        for number, capability in enumerate(capabilities)
    )
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    links = (GpuLink(str(a), str(b), path) for (a, b), path in zip(pairs, paths, strict=True))
    reading = NvmlReading("550", gpus, tuple(links))
    assert nvlink(reading, count) == expected
    assert nvlink(reading, 1) is None
    assert nvlink(reading, 9) is None, "more ranks than GPUs that NVML lists"


def test_a_child_that_cannot_be_killed_is_not_waited_for(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(process, "kill", lambda: None)
        child_process.end([process], within_s=0.1)
        is_alive = process.poll() is None
        process.terminate()
    assert is_alive


def test_the_output_of_a_child_and_its_failures():
    assert child_process.output([sys.executable, "-c", "print(3)"], 60) == "3\n"
    with pytest.raises(subprocess.CalledProcessError):
        child_process.output([sys.executable, "-c", "raise SystemExit(2)"], 60)
    with pytest.raises(subprocess.TimeoutExpired):
        child_process.output([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
