"""GPUs, processors and precision of a rank: what `auto` chooses, and what is refused."""

import os

import pytest
import torch

from disttrain.errors import ConfigError
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import PROCESSORS
from disttrain.runtime import device
from disttrain.runtime.device import choose_device, choose_precision, expected_gpus, pci_gpus

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("wanted", "capability", "found"),
    [
        ("auto", (9, 0), "bf16"),
        ("auto", (8, 0), "bf16"),
        ("auto", (7, 0), "fp32"),
        ("fp32", (5, 2), "fp32"),
        ("fp16", (7, 0), "fp16"),
        ("bf16", (7, 0), "use fp16 or fp32"),
        ("tf32", (7, 5), "use fp16 or fp32"),
        ("fp16", (5, 2), "use fp32"),
    ],
)
def test_a_gpu_computes_in_the_precisions_of_its_hardware(monkeypatch, wanted, capability, found):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    if " " not in found:
        assert choose_precision(wanted, GPU)[0] == found
        return
    with pytest.raises(ConfigError, match=f"^precision.dtype={wanted}: .*; {found}$"):
        choose_precision(wanted, GPU)


@pytest.mark.parametrize(
    ("wanted", "feature", "found"),
    [
        ("auto", "avx512_bf16", "bf16"),
        ("auto", "amx_bf16", "bf16"),
        ("auto", "avx2", "fp32"),
        *((name, "avx2", name) for name in ("fp32", "bf16", "fp16")),
    ],
)
def test_a_processor_computes_in_all_and_chooses_those_of_its_hardware(monkeypatch, wanted, feature, found):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: True})
    assert choose_precision(wanted, CPU)[0] == found


@pytest.mark.parametrize(("wanted", "gpus"), [("shared", 0), ("cuda", 1)])
def test_a_device_that_is_not_there_is_refused(monkeypatch, wanted, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(device, "pci_gpus", lambda: gpus)
    with pytest.raises(ConfigError, match=f"resources.device={wanted}, but"):
        choose_device(wanted, 0, 2)


@pytest.mark.parametrize(
    ("environ", "present", "cuda", "expected"),
    [
        ({}, 8, "12.8", 8),
        ({}, 8, None, 0),  # a CPU build of torch on a workstation
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, "12.8", 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, "12.8", 0),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 8, "12.8", 2),
        ({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, 8, None, 4),
        ({"SLURM_JOB_ID": "1"}, 8, "12.8", 0),  # a job without GPUs on a node with GPUs
        ({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, 0, "12.8", 0),  # emulated generic resources
        (
            {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
            8, "12.8", 0,
        ),
    ],
)  # fmt: skip
def test_gpus_that_a_process_should_find(monkeypatch, environ, present, cuda, expected):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert expected_gpus(environ, present) == expected


def test_gpus_on_the_bus_are_counted_with_and_without_their_driver(tmp_path):
    kinds = [
        ("0x10de", "0x030200", "nvidia"),
        ("0x10de", "0x030000", None),  # no driver is bound
        ("0x10de", "0x030000", "nouveau"),
        ("0x10de", "0x040300", "snd_hda_intel"),  # audio of a display card
        ("0x1a03", "0x030000", "ast"),  # display of the management controller
    ]
    for number, (vendor, kind, driver) in enumerate(kinds):
        entry = tmp_path / "devices" / f"0000:{number:02d}:00.0"
        entry.mkdir(parents=True)
        (entry / "vendor").write_text(f"{vendor}\n")
        (entry / "class").write_text(f"{kind}\n")
        if driver:
            (tmp_path / driver).mkdir()
            (entry / "driver").symlink_to(tmp_path / driver)
    assert pci_gpus(tmp_path / "devices") == 2
    assert pci_gpus(tmp_path / "missing") == 0


def test_processors_of_the_job_are_those_of_all_bound_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert usable_processors({PROCESSORS: "0-2,5"}) == {0, 1, 2, 5}
    assert usable_processors({PROCESSORS: ""}) == usable_processors({}) == {0, 1}
