"""The record of a node, from stand-ins for the kernel's files."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.node import NodeRecord
from disttrain.records.run_directory import RunDir
from jobs.node import node_info
from jobs.schedulers.slurm import allocation
from tests.support.jobs import wait_until

FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nflags\t: fpu\n",
    "proc/meminfo": "MemTotal:       16384000 kB\nMemFree:        1 kB\n",
    "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
    "sys/fs/cgroup/slurm/job_7/memory.max": "8589934592\n",
    "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "100000\n",
    "sys/class/net/ib0/operstate": "up\n",
    "sys/class/net/veth1/operstate": "up\n",
    "sys/class/net/veth1/speed": "-1\n",
    "sys/class/net/eth9/operstate": "down\n",
    "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/rdmap16s27/ports/1/link_layer": "Unspecified\n",
    "sys/class/infiniband/rdmap16s27/ports/1/state": "4: ACTIVE\n",
}
DRIVERS = {"net/eth0": "mlx5_core", "infiniband/mlx5_0": "mlx5_core", "infiniband/rdmap16s27": "efa"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for device, driver in DRIVERS.items():
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/class" / device / "device").mkdir()
        (tmp_path / "sys/class" / device / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    return tmp_path


def collect(root: Path, node: int = 0, **given) -> NodeRecord:
    given = {"environ": {}, "describe": lambda job_id: None} | given
    return NodeRecord.model_validate(allocation.collect_node_record(node, root=root, **given))


def test_processors_memory_and_network(root: Path) -> None:
    found = collect(root)
    assert found.processor == "AMD EPYC 9654 96-Core Processor"
    assert found.processors_usable == len(os.sched_getaffinity(0))
    assert (found.memory_bytes, found.memory_limit_bytes) == (16384000 * 1024, 8 * 2**30)
    assert [(each.name, each.speed_mbit, each.driver) for each in found.interfaces] == [
        ("eth0", 100_000, "mlx5_core"),
        ("ib0", None, None),
        ("veth1", None, None),
    ]
    assert [(each.name, each.link_layer, each.state, each.rate, each.driver) for each in found.fabrics] == [
        ("mlx5_0", "InfiniBand", "ACTIVE", "400 Gb/sec (4X NDR)", "mlx5_core"),
        ("rdmap16s27", "Unspecified", "ACTIVE", None, "efa"),
    ]
    assert "torch" in found.packages


def test_the_fabric_as_detected(shared_tree: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_info, "read_nvml", lambda: None)
    found = collect(shared_tree("hdr_mixed"))
    assert (found.fabric_kind, found.product) == ("infiniband", "NVIDIA DGXA100 920-23687-2530-000")
    assert [each.for_compute for each in found.fabrics] == [True] * 8 + [False] * 2
    assert (found.fabrics[9].reason or "").startswith("100 Gbit/s, slower than the 200 Gbit/s of most")
    libraries = found.communication
    assert libraries is not None
    assert (libraries.nccl, libraries.memory_lock) == ("2.21.5", "unlimited")
    assert libraries.nccl_files == {"/etc/nccl.conf": {"NCCL_IB_TIMEOUT": "22", "NCCL_DEBUG": "WARN"}}


def test_libraries_are_found_in_the_environment_of_the_ranks(tmp_path: Path) -> None:
    """A profile and `job.env` may set other paths than the agent has."""
    (tmp_path / "nccl.conf").write_text("NCCL_IB_TIMEOUT=21\n")
    (tmp_path / "libnccl-net-own.so").touch()
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    paths = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf"), "LD_LIBRARY_PATH": str(tmp_path)}
    of_ranks = {**os.environ, **paths, "PYTHONPATH": str(Path(node_info.__file__).parents[2])}
    of_ranks.pop("PYTHONSAFEPATH", None)
    node_info.start_node_info(attempt, 3, of_ranks)
    wait_until(attempt.node_record(3).exists)
    found = NodeRecord.model_validate(read_json(attempt.node_record(3))).communication
    assert found is not None
    assert found.nccl_files[paths["NCCL_CONF_FILE"]] == {"NCCL_IB_TIMEOUT": "21"}
    assert str(tmp_path / "libnccl-net-own.so") in found.nccl_plugins


def test_values_that_cannot_be_read_are_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a damaged package")

    monkeypatch.setattr(node_info.metadata, "distributions", broken)
    found = collect(tmp_path, describe=lambda job_id: None, environ={"SLURM_JOB_ID": "7"})
    assert (found.processor, found.memory_bytes, found.interfaces, found.fabrics) == (None, None, [], [])
    assert (found.packages, found.scontrol, found.slurm) == ({}, None, {"SLURM_JOB_ID": "7"})


def test_what_slurm_says_without_secrets(root: Path) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JWT_TOKEN": "hush", "HOME": "/home"}
    said = "JobId=7\n   Command=/x.sbatch --job.env.MINE hush\n   Export=API_TOKEN=hush"
    found = collect(root, environ=environ, describe=lambda job_id: said if job_id == "7" else None)
    assert found.slurm == {"SLURM_JOB_ID": "7", "SLURM_JWT_TOKEN": "***"}
    assert found.scontrol == "JobId=7\n   Command=/x.sbatch --job.env ***\n   Export=API_TOKEN=***"
    assert collect(root, node=1, environ=environ, describe=lambda _: said).scontrol is None


class Nvml(types.ModuleType):
    """Two GPUs as pynvml tells of them."""

    nvmlInit = staticmethod(lambda: None)  # noqa: N815
    nvmlDeviceGetCount = staticmethod(lambda: 2)  # noqa: N815
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)  # noqa: N815
    nvmlDeviceGetName = staticmethod(lambda _: "NVIDIA H100")  # noqa: N815
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: types.SimpleNamespace(total=85899345920))  # noqa: N815
    nvmlDeviceGetPciInfo = staticmethod(lambda i: types.SimpleNamespace(busId=f"0000:0{i}:00.0"))  # noqa: N815
    nvmlDeviceGetUUID = staticmethod(lambda index: f"GPU-{index}ab")  # noqa: N815
    nvmlSystemGetDriverVersion = staticmethod(lambda: "560.35.03")  # noqa: N815


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(None, ["GPU-0ab", "GPU-1ab"]), ("1", ["GPU-1ab"]), ("GPU-0", ["GPU-0ab"]), ("", [])],
)
def test_the_gpus_of_the_job(
    chosen: str | None, expected: list[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    found = collect(root)
    assert found.driver == "560.35.03"
    assert [gpu.uuid for gpu in found.gpus] == expected


def test_without_a_driver(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = collect(root)
    assert (found.driver, found.gpus) == (None, [])
