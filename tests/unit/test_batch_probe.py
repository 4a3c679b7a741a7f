"""The probe process of the automatic batch size: stop signals, compiled models, errors of the allocator."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine import batch_probe
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
    request = {"below": None, "limit_bytes": 1 << 30, "limit_source": "test", "parent_bytes": 0}
    with (
        torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8),
        open_world(config) as world,
    ):
        probe = batch_probe.Probe(config, request, world, lambda size: None)
        torch._dynamo.config.recompile_limit = 1
        sizes = [probe.measure(size, steps=1).local_batch_size for size in (2, 3)]
    torch._dynamo.reset()
    assert sizes == [2, 3]


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
