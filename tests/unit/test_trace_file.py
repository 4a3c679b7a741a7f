"""The export of a profiler's trace."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from disttrain.telemetry.profiled.profiled_steps import mark
from disttrain.telemetry.profiled.step_trace import END, comm_sample, decode_trace
from disttrain.telemetry.step_clock import COMPUTE, OPTIMIZER, OTHER


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The trace of a small step, as Kineto writes it."""
    model, inputs = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), torch.ones(4, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        mark(OTHER)
        mark(COMPUTE)
        model(inputs).sum().backward()
        mark(OPTIMIZER)
        mark(END)
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path.read_text()


def test_a_trace_for_collectives_has_no_operators(text: str) -> None:
    whole, part = json.loads(text), decode_trace(text)
    operators = [each for each in whole["traceEvents"] if each.get("cat") in ("cpu_op", "fwdbwd")]
    assert operators
    assert part["traceEvents"] == [each for each in whole["traceEvents"] if each not in operators]
    assert {**whole, "traceEvents": []} == {**part, "traceEvents": []}
    assert comm_sample(1, part) == comm_sample(1, whole)


def test_kernels_and_their_annotations_are_kept() -> None:
    categories = ["cpu_op", "kernel", "cuda_runtime", "gpu_user_annotation", "ac2g", "gpu_memcpy"]
    events = [
        f'\n  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": "{category} of a kernel"\n  }}'
        for category in categories
    ]
    trace = '{"traceEvents": [' + ",".join(events) + '],"traceName": "x"}'
    found = [each["cat"] for each in decode_trace(trace)["traceEvents"]]
    assert found == ["kernel", "gpu_user_annotation", "gpu_memcpy"]


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_a_file_of_another_layout_is_decoded_too(text: str, indent: int | None) -> None:
    whole = json.loads(text)
    assert comm_sample(1, decode_trace(json.dumps(whole, indent=indent))) == comm_sample(1, whole)
