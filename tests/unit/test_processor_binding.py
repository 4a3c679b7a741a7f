"""The agent's choice of processors: when ranks are bound, and how scripts take the binding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.run_directory import PROCESSORS
from jobs.fabric.description import Gpu, PciDevice
from jobs.fabric.gpu_links import NvmlReading
from jobs.fabric.plan_binding import Processor
from jobs.node import processor_binding, start_command
from jobs.node.node_gpus import NodeGpus, read_node_gpus


def chosen(monkeypatch, *, ranks: int = 2, allocated: int | None = 8, **job: str):
    """The variable on a node with eight processors in two NUMA nodes, without a GPU."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    machine = [Processor(number, number // 4, number // 4, number % 4) for number in range(8)]
    monkeypatch.setattr(processor_binding.plan_binding, "read_processors", lambda: machine)
    config = Config.model_validate(
        {"resources": {"gpus_per_node": ranks, "device": "cpu"}, "job": job}
    ).as_dict()
    return processor_binding.variable(
        config, SimpleNamespace(processors_on_node=lambda: allocated), lambda: NodeGpus(0)
    )


def test_ranks_of_a_job_are_bound(monkeypatch) -> None:
    assert chosen(monkeypatch).value == "0,1,2,3;4,5,6,7"
    assert chosen(monkeypatch, allocated=None).value


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"binding": "none"}, "ranks are not bound: job.binding is none"),
        ({"ranks": 1}, "ranks are not bound: one rank uses all processors of the job"),
        ({"ranks": 8}, "ranks are not bound: 8 ranks with 1 compute threads each would share 8 processors"),
        ({"allocated": 4}, "ranks are not bound: the job has 4 of the 8 processors"),
    ],
)
def test_nothing_changes_where_processors_are_shared(monkeypatch, fields, reason: str) -> None:
    found = chosen(monkeypatch, **fields)
    assert found.value == ""
    assert found.reason.startswith(reason)


def test_ranks_are_near_their_gpus_by_one_reading_of_nvml(monkeypatch) -> None:
    machine = [Processor(number, number // 4, number // 4, number % 4) for number in range(8)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processor_binding.plan_binding, "read_processors", lambda: machine)
    monkeypatch.setattr(
        processor_binding.plan_binding,
        "numa_nodes",
        lambda places: [{"a": 0, "b": 1}[each] for each in places],
    )
    calls = []

    def read() -> NodeGpus:
        calls.append(1)
        return NodeGpus(2, (), NvmlReading(gpus=(Gpu(PciDevice("b")), Gpu(PciDevice("a")))))

    allocation = SimpleNamespace(processors_on_node=lambda: 8)
    for device, ranks, value, count in (
        ("cuda", 2, "4,5,6,7;0,1,2,3", 1), ("cuda", 1, "", 1), ("cpu", 2, "0,1,2,3;4,5,6,7", 1)
    ):  # fmt: skip
        config = Config.model_validate({"resources": {"gpus_per_node": ranks, "device": device}}).as_dict()
        assert processor_binding.variable(config, allocation, read).value == value
        assert len(calls) == count, "NVML is read only where it matters"


def test_runs_on_this_machine_are_not_bound() -> None:
    assert processor_binding.variable(Config().as_dict(), None, read_node_gpus).value == ""


def test_a_script_starts_on_its_processors(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("import os; print(sorted(os.sched_getaffinity(0)))")
    first = min(os.sched_getaffinity(0))
    for text, processors in ((f"9999;{first}", [first]), ("9999;9999", sorted(os.sched_getaffinity(0)))):
        environ = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", PROCESSORS: text}
        command = [sys.executable, start_command.__file__, str(tmp_path), str(tmp_path), str(script)]
        subprocess.run(command, env=environ, check=True, timeout=60)
        log = tmp_path / "rank-00001.log"
        assert log.read_text() == f"{processors}\n"
        log.unlink()
