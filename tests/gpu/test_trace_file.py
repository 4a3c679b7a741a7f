"""A trace of a step on a real GPU: kernels and collectives are found without the events of the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from disttrain.telemetry.profiled.profiled_steps import mark
from disttrain.telemetry.profiled.step_trace import END, comm_sample, decode_trace
from disttrain.telemetry.step_clock import COMPUTE, OTHER

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_the_trace_for_collectives_has_all_kernels(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    try:
        model = DistributedDataParallel(nn.Linear(64, 64).to(device), device_ids=[0])
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.ones(8, 64, device=device)
        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds, record_shapes=True) as profiler:
            mark(OTHER)
            mark(COMPUTE)
            model(inputs).sum().backward()
            optimizer.step()
            torch.cuda.synchronize()
            mark(END)
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    finally:
        dist.destroy_process_group()
    text = (tmp_path / "trace.json").read_text()
    whole, part = json.loads(text), decode_trace(text)
    assert len(part["traceEvents"]) < len(whole["traceEvents"])
    found = comm_sample(1, part)
    assert found == comm_sample(1, whole)
    assert found.compute_s
