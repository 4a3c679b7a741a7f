"""The record of a node, from stand-ins for the kernel's files."""

import os
import sys
import types
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.node import NodeRecord
from disttrain.records.run_directory import RunDir
from jobs.node import node_info
from jobs.schedulers.slurm import allocation
from tests.support.jobs import wait_until

NET, RDMA = "sys/class/net", "sys/class/infiniband"
FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nflags\t: fpu\n",
    "proc/meminfo": "MemTotal:       16384000 kB\nMemFree:        1 kB\n",
    "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
    "sys/fs/cgroup/slurm/job_7/memory.max": "8589934592\n",
    "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
    f"{NET}/lo/operstate": "unknown\n",
    f"{NET}/eth0/operstate": "up\n",
    f"{NET}/eth0/speed": "100000\n",
    f"{NET}/veth1/operstate": "up\n",
    f"{NET}/veth1/speed": "-1\n",
    f"{NET}/eth9/operstate": "down\n",
    f"{RDMA}/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    f"{RDMA}/mlx5_0/ports/1/state": "4: ACTIVE\n",
    f"{RDMA}/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "drivers/mlx5_core").mkdir(parents=True)
    for device in (f"{NET}/eth0", f"{RDMA}/mlx5_0"):
        (tmp_path / device / "device").mkdir()
        (tmp_path / device / "device/driver").symlink_to(tmp_path / "drivers/mlx5_core")
    return tmp_path


def collect(root, node=0, environ=None, describe=lambda job_id: None):
    record = allocation.collect_node_record(node, root=root, environ=environ or {}, describe=describe)
    return NodeRecord.model_validate(record)


def values(parts, *names):
    return [tuple(getattr(part, name) for name in names) for part in parts]


def test_processors_memory_and_network(root):
    found = collect(root)
    assert found.processor == "AMD EPYC 9654 96-Core Processor"
    assert found.processors_usable == len(os.sched_getaffinity(0))
    assert (found.memory_bytes, found.memory_limit_bytes) == (16384000 * 1024, 8 * 2**30)
    interfaces = values(found.interfaces, "name", "speed_mbit", "driver")
    assert interfaces == [("eth0", 100_000, "mlx5_core"), ("veth1", None, None)]
    ports = values(found.fabrics, "name", "link_layer", "state", "rate", "driver")
    assert ports == [("mlx5_0", "InfiniBand", "ACTIVE", "400 Gb/sec (4X NDR)", "mlx5_core")]
    assert "torch" in found.packages


def test_the_fabric_and_its_software(shared_tree):
    found = collect(shared_tree("hdr_mixed"))
    assert (found.fabric_kind, found.product) == ("infiniband", "NVIDIA DGXA100 920-23687-2530-000")
    assert values(found.fabrics, "for_compute") == [(True,)] * 8 + [(False,)] * 2
    libraries = found.communication
    assert (libraries.nccl, libraries.memory_lock) == ("2.21.5", "unlimited")
    assert libraries.nccl_files == {"/etc/nccl.conf": {"NCCL_IB_TIMEOUT": "22", "NCCL_DEBUG": "WARN"}}


def test_libraries_are_found_in_the_environment_of_the_ranks(tmp_path):
    """A profile and `job.env` may set other paths than the agent has."""
    conf, plugin = tmp_path / "nccl.conf", tmp_path / "libnccl-net-own.so"
    conf.write_text("NCCL_IB_TIMEOUT=21\n")
    plugin.touch()
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    paths = {"NCCL_CONF_FILE": str(conf), "LD_LIBRARY_PATH": str(tmp_path)}
    of_ranks = {**os.environ, **paths, "PYTHONPATH": str(Path(node_info.__file__).parents[2])}
    of_ranks.pop("PYTHONSAFEPATH", None)
    node_info.start_node_info(attempt, 3, of_ranks)
    wait_until(attempt.node_record(3).exists)
    found = NodeRecord.model_validate(read_json(attempt.node_record(3))).communication
    assert found.nccl_files[str(conf)] == {"NCCL_IB_TIMEOUT": "21"}
    assert str(plugin) in found.nccl_plugins


def test_values_that_cannot_be_read_are_null(tmp_path, monkeypatch):
    def broken(path):
        raise RuntimeError("a damaged package")

    monkeypatch.setattr(node_info.metadata, "distributions", broken)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = collect(tmp_path, environ={"SLURM_JOB_ID": "7"})
    assert (found.processor, found.memory_bytes, found.driver, found.scontrol) == (None,) * 4
    assert (found.interfaces, found.fabrics, found.gpus, found.packages) == ([], [], [], {})
    assert found.slurm == {"SLURM_JOB_ID": "7"}


def test_variables_and_description_of_slurm_are_without_secrets(root):
    environ = {"SLURM_JOB_ID": "7", "SLURM_JWT_TOKEN": "hush", "HOME": "/home"}
    text = "JobId=7\n   Command=/x.sbatch --job.env.MINE {}\n   Export=API_TOKEN={}"
    found = collect(root, 0, environ, {"7": text.format("hush", "hush")}.get)
    assert found.slurm == {"SLURM_JOB_ID": "7", "SLURM_JWT_TOKEN": "***"}
    assert found.scontrol == text.format("***", "***").replace(".MINE", "")
    assert collect(root, 1, environ, lambda _: text).scontrol is None


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(None, ["GPU-0ab", "GPU-1ab"]), ("1", ["GPU-1ab"]), ("GPU-0", ["GPU-0ab"]), ("", [])],
)
def test_the_gpus_of_the_job(chosen, expected, root, monkeypatch):
    nvml = types.ModuleType("pynvml")
    answers = {
        "nvmlInit": None, "nvmlDeviceGetCount": 2, "nvmlDeviceGetName": "NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=85899345920),
        "nvmlSystemGetDriverVersion": "560.35.03",
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(nvml, name, lambda *_, answer=answer: answer)
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetPciInfo = lambda index: types.SimpleNamespace(busId=f"0000:0{index}:00.0")
    nvml.nvmlDeviceGetUUID = lambda index: f"GPU-{index}ab"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    found = collect(root)
    assert (found.driver, values(found.gpus, "uuid")) == ("560.35.03", [(uuid,) for uuid in expected])
