"""The real NVML, on a machine that has a GPU."""

import os
import sys
import time

import pynvml
import pytest
import torch

from disttrain.hardware.fields import FIELDS
from disttrain.hardware.node_sampler import HardwareSampler, LocalRank, Node
from disttrain.hardware.readings import Readings
from disttrain.hardware.statistics import gpu_summary
from disttrain.records.hardware import GpuSample, NodeGpus
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.node_sampling import identify


def without_gpu() -> str | None:
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if torch.version.hip:
        return "the GPU is not NVIDIA's"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    return None


REASON = without_gpu()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no GPU to ask: {REASON}")


def gpu(device):
    api = sys.modules["pynvml"]
    return Readings([row for row in FIELDS if row.of == "gpu"], api, identify(device).handle(api))


def test_the_device_torch_uses_is_the_one_that_is_sampled():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.cuda.set_device(device)
    reader = gpu(device)
    before = reader.read(time.monotonic())
    held = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    grown = reader.read(time.monotonic())["memory_used_bytes"] - before["memory_used_bytes"]
    assert grown >= held.numel()
    assert reader.samples.constants["name"] == torch.cuda.get_device_name(device)


def test_work_shows(tmp_path):
    device = torch.device("cuda", 0)
    attempt = RunDir(tmp_path).attempt(0)
    own = LocalRank(0, 0, os.getpid(), (identify(device),), time.monotonic())
    sampler = HardwareSampler(Node(attempt, [own], 0.1), lambda: 0)
    sampler.start()
    matrix = torch.randn(4096, 4096, device=device)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        matrix = (matrix @ matrix).clamp(-1, 1)
        torch.cuda.synchronize(device)
    sampler.close()
    samples = [GpuSample.model_validate(line) for line in read_jsonl(attempt.gpu_samples(0))]
    devices = NodeGpus.model_validate(read_json(attempt.gpu_devices(0)))
    usage, reasons = gpu_summary(FIELDS, sampler.accumulated().gpus)
    print(devices.model_dump_json(indent=1), usage.model_dump_json(indent=1), reasons, file=sys.stderr)
    assert len(samples) > 10
    assert usage.utilization > 0.5
    if usage.energy_j is not None and usage.power_mean_w is not None:
        assert usage.energy_j == pytest.approx(usage.power_mean_w * usage.sampled_s, rel=0.5)
