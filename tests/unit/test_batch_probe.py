"""The probe process of the automatic batch size, and its search on machines of known memory and speed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.config_tree import Config
from disttrain.engine import batch_probe
from disttrain.engine.batch_probe import choose, fit_memory, search
from disttrain.records.checkpoint import BatchProbe
from disttrain.runtime import stop_signals
from disttrain.runtime.process_group import open_world


def test_stop_signals_are_ignored_before_the_request_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(stop_signals.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(batch_probe, "die_with_parent", lambda: None)
    monkeypatch.setattr(batch_probe.Path, "write_text", lambda *_, **__: None)
    with pytest.raises(FileNotFoundError):
        batch_probe.main(tmp_path)
    assert handlers == dict.fromkeys((signal.SIGINT, *stop_signals.SIGNALS), signal.SIG_IGN)


def test_each_size_of_a_compiled_model_is_within_the_limit_of_graphs() -> None:
    config = Config.model_validate(
        {
            "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1},
            "data": {"kind": "synthetic", "task": "language", "vocab": 8, "seq_len": 4, "valid_samples": 0},
            "train": {"steps": 1, "local_batch_size": "auto"},
            "compile": {"scope": "model", "backend": "eager", "fullgraph": True},
            "parallel": {"strategy": "single"},
            "resources": {"device": "cpu"},
        }
    )
    with (
        torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8),
        open_world(config) as world,
    ):
        probe = batch_probe.Probe(config, world, lambda size: None)
        torch._dynamo.config.recompile_limit = 1
        sizes = [probe.measure(size).local_batch_size for size in (2, 3)]
    torch._dynamo.reset()
    assert sizes == [2, 3]


def test_a_choice_that_fails_its_verification_is_followed_by_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config.model_validate(
        {
            "model": {"kind": "mlp"},
            "data": {"kind": "synthetic", "samples": 16},
            "train": {"steps": 1, "local_batch_size": "auto"},
            "parallel": {"strategy": "single"},
            "resources": {"device": "cpu"},
        }
    )

    def measure(_: object, size: int, verify: bool = False) -> BatchProbe:
        peak = 1 << 60 if verify and size > 8 else size
        return BatchProbe(local_batch_size=size, peak_bytes=peak, samples_per_s=size)

    monkeypatch.setattr(batch_probe.Probe, "measure", measure)
    with open_world(config) as world:
        probe = batch_probe.Probe(config, world, lambda size: None)
        with pytest.raises(MemoryError, match=r"^16 samples .* in the verification$") as failure:
            probe.run()
        assert batch_probe.is_out_of_memory(failure.value)
        fit = probe.run([16])
    assert (fit.local_batch_size, fit.out_of_memory) == (8, [16])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_errors_of_too_little_memory(message: str, expected: bool) -> None:
    assert batch_probe.is_out_of_memory(RuntimeError(message)) is expected


MIB = 2**20


class Machine:
    """Takes `fixed + slope x batch` bytes; its speed saturates at `saturation` samples."""

    def __init__(self, fixed: float, slope: float, saturation: int = 10**9) -> None:
        self.fixed, self.slope, self.saturation = fixed, slope, saturation
        self.tried: list[int] = []

    def measure(self, size: int) -> BatchProbe:
        self.tried.append(size)
        peak = round(self.fixed + self.slope * size)
        return BatchProbe(local_batch_size=size, peak_bytes=peak, samples_per_s=min(size, self.saturation))


def chosen(machine: Machine, budget: float, multiple: int | None = None, limit: int = 10**6) -> int | None:
    return choose(search(machine.measure, multiple, limit, budget), budget)


def test_two_probes_give_both_parts():
    machine = Machine(300, 7)
    assert fit_memory([machine.measure(2), machine.measure(16)]) == (300, 7)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(100, 100_000))
def test_nothing_predicted_beyond_the_budget_is_tried(fixed, slope, budget):
    machine = Machine(fixed, slope)
    probes = search(machine.measure, None, 10**6, budget)
    beyond = [size for size in machine.tried if fixed + slope * size > budget]
    assert len(beyond) <= 1  # of the first two, from which the prediction follows
    assert set(beyond) <= {1, 2}
    fitting = [probe for probe in probes if probe.peak_bytes <= budget]
    if fitting:  # the largest one is near the bound, and a multiple of 8
        largest = (budget - fixed) // slope
        assert fitting[-1].local_batch_size >= min(largest, max(1, largest - 7))


def test_the_smaller_of_equally_fast_sizes_is_chosen():
    machine = Machine(0, 1, saturation=16)
    assert chosen(machine, 10**6) == 16
    assert machine.tried == [1, 2, 4, 8, 16, 32, 64]  # no gain at two sizes: enough


@pytest.mark.parametrize(("budget", "expected"), [(1000, 96), (100, 96), (95, 48), (47, 32), (30, 24)])
def test_a_global_batch_size_allows_its_divisors_alone(budget, expected):
    assert chosen(Machine(0, 1), budget, multiple=96) == expected


def test_no_more_samples_than_there_are():
    assert chosen(Machine(0, 1), 10**6, limit=100) == 96


def test_without_a_size_that_fits_there_is_no_choice():
    probes = search(Machine(10 * MIB, 1).measure, None, 64, MIB)
    assert choose(probes, MIB) is None
