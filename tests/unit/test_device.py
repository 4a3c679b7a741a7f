"""Processors of a rank, and the precision of its device: what `auto` chooses, and what is refused."""

from __future__ import annotations

import os

import pytest
import torch

from disttrain.errors import ConfigError
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import PROCESSORS
from disttrain.runtime.device import choose_precision

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    def of(capability: tuple[int, int]) -> torch.device:
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        return GPU

    return of


@pytest.mark.parametrize(
    ("capability", "expected", "reason"),
    [
        ((9, 0), "bf16", "a GPU computes bf16 in hardware"),
        ((8, 0), "bf16", "a GPU computes bf16 in hardware"),
        ((7, 0), "fp32", "a GPU does not compute bf16 in hardware"),
    ],
)
def test_auto_is_bf16_where_the_gpu_has_it(gpu, capability, expected, reason):
    assert choose_precision("auto", gpu(capability)) == (expected, reason)


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16", None])
def test_auto_is_bf16_where_the_processor_has_it(monkeypatch, feature):
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx2": True} | ({feature: True} if feature else {})
    )
    name, reason = choose_precision("auto", CPU)
    assert (name, "does not" in reason) == (("bf16", False) if feature else ("fp32", True))


@pytest.mark.parametrize(
    ("wanted", "capability", "message"),
    [
        ("bf16", (7, 0), "precision.dtype=bf16: a GPU does not compute bf16 in hardware; use fp16 or fp32"),
        ("tf32", (7, 5), "precision.dtype=tf32: a GPU does not compute tf32 in hardware; use fp16 or fp32"),
        ("fp16", (5, 2), "precision.dtype=fp16: a GPU does not compute fp16 in hardware; use fp32"),
    ],
)
def test_a_precision_without_hardware_is_refused(gpu, wanted, capability, message):
    with pytest.raises(ConfigError) as refused:
        choose_precision(wanted, gpu(capability))
    assert str(refused.value) == message


@pytest.mark.parametrize("wanted", ["fp32", "bf16", "fp16"])
def test_a_processor_computes_them_all(wanted):
    assert choose_precision(wanted, CPU) == (wanted, "requested")


def test_processors_of_the_job_are_those_of_all_bound_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert usable_processors({PROCESSORS: "0-2,5"}) == {0, 1, 2, 5}
    assert usable_processors({PROCESSORS: ""}) == usable_processors({}) == {0, 1}
