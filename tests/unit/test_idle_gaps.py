"""Idle gaps of a device: every kernel counts as use, those of the optimizer included."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.idle_gaps import idle_gaps
from disttrain.telemetry.profiled.step_trace import END, MARK
from disttrain.telemetry.step_clock import COMPUTE, OPTIMIZER


def event(category: str, name: str, begin_ms: float, ms: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": 1000 * begin_ms, "dur": 1000 * ms}


def test_kernels_of_the_optimizer_are_no_gap(tmp_path: Path) -> None:
    marks = {0: COMPUTE, 50: OPTIMIZER, 100: END}
    events = [event("user_annotation", f"{MARK}{phase}", at, 0) for at, phase in marks.items()]
    events += [
        event("kernel", "gemm", 0, 60),
        event("gpu_user_annotation", "Optimizer.step#AdamW.step", 70, 30),
        event("kernel", "multi_tensor_apply_kernel", 70, 30),
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    (step,) = idle_gaps(path)["steps"]
    assert step["idle_s"] == pytest.approx(0.010)
    assert step["longest_gaps_s"] == [pytest.approx((0.060, 0.010))]
