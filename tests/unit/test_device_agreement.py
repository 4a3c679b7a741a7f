"""All ranks agree on device and backend before the process group starts, or name the node that differs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttrain import __main__ as entry
from disttrain.config.config_tree import Config
from disttrain.errors import EXIT_BAD_INPUT, ConfigError, NodeFault
from disttrain.runtime import device, device_agreement
from disttrain.runtime.device_agreement import RankDevice, find_problem
from disttrain.runtime.process import RankInfo
from disttrain.runtime.process_group import open_world
from disttrain.runtime.run_output import record_failure


def on_gpu(node: str, index: int) -> RankDevice:
    return RankDevice(node, f"cuda:{index}", "nccl")


def on_cpu(node: str) -> RankDevice:
    return RankDevice(node, "cpu", "gloo")


def without(node: str, problem: str) -> RankDevice:
    return RankDevice(node, problem=problem, message="no device")


GPU_NODE = [on_gpu("a", 0), on_gpu("a", 1)]


def test_equal_types_of_device_can_train_together() -> None:
    assert find_problem([*GPU_NODE, on_gpu("b", 0), on_gpu("b", 1)]) is None
    assert find_problem([on_cpu("a"), on_cpu("b")]) is None


@pytest.mark.parametrize("cpu_nodes", ["b", "bc"])
def test_a_node_on_the_cpu_beside_gpus_is_named(cpu_nodes: str) -> None:
    found = find_problem([*GPU_NODE, *(on_cpu(node) for node in cpu_nodes for _ in range(2))])
    assert found is not None
    assert (found.problem, found.rank) == ("node", 2)
    assert found.message.startswith("node b would train on cpu with gloo, but node a on cuda with nccl")


def test_a_backend_that_differs_is_refused() -> None:
    found = find_problem([on_gpu("a", 0), RankDevice("b", "cuda:0", "gloo")])
    assert found is not None
    assert found.message.startswith("node b would train on cuda with gloo")


def test_nodes_that_would_choose_another_precision_are_named() -> None:
    ampere, volta = (
        RankDevice(node, "cuda:0", "nccl", dtype) for node, dtype in (("a", "bf16"), ("b", "fp32"))
    )
    assert find_problem([ampere, ampere]) is None
    found = find_problem([ampere, volta])
    assert found is not None
    assert (found.problem, found.rank) == ("config", 1)
    assert found.message.startswith("precision.dtype=auto would be bf16 on node a, but fp32 on node b; set ")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"precision": {"dtype": "tf32"}}, r"precision\.dtype=tf32 needs a GPU, .*; use fp32"),
        (
            {"parallel": {"backend": "nccl"}},
            r"this rank .* CPU: parallel\.backend=nccl .*; use gloo or auto",
        ),
        ({"train": {"attention": "cudnn"}}, r"train\.attention=cudnn needs a GPU, .*; use flash"),
        ({"memory": {"offload_activations": True}}, r"this rank trains on the CPU: .* needs a GPU"),
    ],
)
def test_settings_that_no_device_has_are_refused_before_the_process_group(
    wanted: dict[str, Any], message: str, monkeypatch
) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("a process group started"))
    monkeypatch.setattr("socket.gethostname", lambda: "cpu-07")
    with (
        pytest.raises(ConfigError, match=f"node cpu-07: {message}"),
        open_world(Config.model_validate(wanted)),
    ):
        pass


def test_a_rank_refuses_the_kernel_of_the_config_before_the_process_group(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(entry.StopSignals, "install", lambda _: None)
    monkeypatch.setattr(entry.faulthandler, "enable", lambda: None)
    monkeypatch.setattr("disttrain.engine.train.train", lambda *_: pytest.fail("the run started"))
    monkeypatch.setattr("socket.gethostname", lambda: "cpu-07")
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(
        "{train: {steps: 1, local_batch_size: 1, attention: cudnn}, precision: {dtype: bf16}}"
    )
    assert entry.rank_main(["--config", "own.yaml"], {}) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.startswith("error: node cpu-07: train.attention=cudnn needs a GPU, but")


@pytest.mark.parametrize("sections", ["{scope: blocks}", "{scope: blocks, backend: eager}"])
def test_a_rank_without_a_compiler_is_refused_before_the_process_group(
    sections: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    reached = []
    monkeypatch.setattr(entry.StopSignals, "install", lambda _: None)
    monkeypatch.setattr(entry.faulthandler, "enable", lambda: None)
    monkeypatch.setattr("disttrain.engine.train.train", lambda *_: reached.append("the run"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(f"{{train: {{steps: 1, local_batch_size: 1}}, compile: {sections}}}")
    found = entry.rank_main(["--config", "own.yaml"], {})
    if "eager" in sections:
        assert reached == ["the run"]
        return
    assert found == EXIT_BAD_INPUT
    assert "needs a C++ compiler on the CPU, and none of" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["own.yaml"]


def test_a_node_whose_gpus_lack_the_kernel_is_named(monkeypatch) -> None:
    """Node `b` has older GPUs than node `a`."""
    chosen, config = [], Config.model_validate({"train": {"attention": "flash"}})
    monkeypatch.setattr(device_agreement, "choose_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    for node, capability in (("a", (9, 0)), ("b", (7, 5))):
        monkeypatch.setattr("socket.gethostname", lambda node=node: node)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        info = RankInfo(rank=len(chosen), size=2, local_rank=0, local_size=1)
        chosen.append(device_agreement.choose(config, info))
    found = find_problem(chosen)
    assert found is not None
    assert (found.problem, found.rank) == ("node", 1)
    assert found.message.startswith("node b: train.attention=flash needs compute capability 8.0")


@pytest.mark.parametrize(
    ("chosen", "problem", "rank"),
    [
        ([without("a", "config")] * 2, "config", 0),
        ([*GPU_NODE, without("b", "config")], "node", 2),
        ([*GPU_NODE, without("b", "node")], "node", 2),
        ([without("a", "config"), without("b", "node")], "node", 1),
    ],
)
def test_gpus_missing_on_some_nodes_are_a_fault_of_these(chosen, problem, rank) -> None:
    found = find_problem(chosen)
    assert found is not None
    assert (found.problem, found.rank) == (problem, rank)
    assert found.message == f"node {chosen[rank].node}: no device"


def test_every_rank_raises_the_verdict() -> None:
    store = dist.HashStore()
    chosen = [*GPU_NODE, on_cpu("b"), on_cpu("b")]

    def join(rank: int) -> str:
        with pytest.raises(NodeFault) as raised:
            device_agreement.agree(chosen[rank], rank, len(chosen), store)
        record = record_failure(raised.value, rank)
        assert (record.rank, record.cause) == (2, "launch_failed")
        return record.message

    with ThreadPoolExecutor(len(chosen)) as ranks:
        [message] = set(ranks.map(join, range(len(chosen))))
    assert message.startswith("node b would train on cpu")


@pytest.mark.parametrize("requested", ["auto", "cuda", "shared"])
def test_a_node_whose_driver_is_broken_is_refused(monkeypatch, requested: str) -> None:
    """Two GPUs are on the bus, and CUDA finds none, in a world of one rank."""
    monkeypatch.setattr(device, "pci_gpus", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-07")
    with (
        pytest.raises(NodeFault, match="node gpu-07: CUDA finds 0 of 2 NVIDIA GPUs"),
        open_world(Config.model_validate({"resources": {"device": requested}})),
    ):
        pass


@pytest.mark.parametrize(
    ("environ", "present", "cuda", "expected"),
    [
        ({}, 8, "12.8", 8),
        ({}, 8, None, 0),  # a CPU build of torch on a workstation
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, "12.8", 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, "12.8", 0),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 8, "12.8", 2),
        ({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, 8, "12.8", 4),
        ({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, 8, None, 4),
        ({"SLURM_JOB_ID": "1"}, 8, "12.8", 0),  # a job without GPUs on a node with GPUs
        ({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, 0, "12.8", 0),  # emulated generic resources
        ({"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 8, "12.8", 0),
    ],
)
def test_gpus_that_a_process_should_find(monkeypatch, environ, present, cuda, expected) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert device.expected_gpus(environ, present) == expected


def test_gpus_on_the_bus_are_counted_with_and_without_their_driver(tmp_path: Path) -> None:
    kinds = [
        ("0x10de", "0x030200", "nvidia"),
        ("0x10de", "0x030000", None),  # no driver is bound
        ("0x10de", "0x030000", "nouveau"),
        ("0x10de", "0x040300", "snd_hda_intel"),  # audio of a display card
        ("0x10de", "0x068000", "nvidia-nvswitch"),
        ("0x1a03", "0x030000", "ast"),  # display of the management controller
    ]
    for number, (vendor, kind, driver) in enumerate(kinds):
        entry = tmp_path / "devices" / f"0000:{number:02d}:00.0"
        entry.mkdir(parents=True)
        (entry / "vendor").write_text(f"{vendor}\n")
        (entry / "class").write_text(f"{kind}\n")
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True)
            (entry / "driver").symlink_to(tmp_path / "drivers" / driver)
    assert device.pci_gpus(tmp_path / "devices") == 2
    assert device.pci_gpus(tmp_path / "missing") == 0
