"""The precision of a device: what `auto` chooses, and what is refused."""

from __future__ import annotations

import pytest
import torch

from disttrain.errors import ConfigError
from disttrain.runtime.device_precision import choose_precision

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
