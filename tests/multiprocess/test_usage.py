"""GPUs (replayed) and processes beside real training: files, live figures, the summary over nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from analysis.read.samples import step_at
from disttrain.config.config_tree import Config
from disttrain.engine.train import train
from disttrain.hardware.node_sampler import GpuId
from disttrain.records.attempt import Progress
from disttrain.records.hardware import GpuSample, HostSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import node_sampling
from tests.support import nvml

pytestmark = pytest.mark.multiprocess

CONFIG = {
    "model": {"kind": "tests.support.small_models:Net", "slow_rank": 0, "slow_s": 0.01},
    "data": {"kind": "tests.support.small_models:source"},
    "train": {"steps": 40, "local_batch_size": 4, "eval_every": 20},
    "telemetry": {"warmup_steps": 2, "gpu_every_s": 0.02},
}


def config_for(nodes: int, per_node: int, **telemetry: object) -> Config:
    return Config.model_validate(
        CONFIG
        | {"telemetry": {**CONFIG["telemetry"], **telemetry}}
        | {"resources": {"nodes": nodes, "gpus_per_node": per_node, "device": "cpu"}}
    )


def train_on(world: World, config: Config, folder: Path) -> Metrics:
    return train(config, RunOutput.of_job(folder, 0), world)


def alone() -> World:
    return World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


def samples_of(folder: Path, node: int) -> list[HostSample]:
    return [HostSample.model_validate(x) for x in read_jsonl(RunDir(folder).attempt(0).host_samples(node))]


def test_each_node_samples_its_own_ranks_and_the_summary_is_of_all(two_ranks, tmp_path):
    metrics = two_ranks.call(train_on, config_for(2, 1), tmp_path)[0]
    assert [{s.rank for s in samples_of(tmp_path, number)} for number in (0, 1)] == [{0}, {1}]
    assert metrics.processes.ranks == 2
    assert metrics.processes.samples <= sum(len(samples_of(tmp_path, number)) for number in (0, 1))
    assert metrics.processes.cpu_percent > 0
    assert metrics.processes.rss_peak_bytes > 1e7
    assert metrics.gpu is None
    assert metrics.null_reasons["gpu"] == "no rank has a GPU"


def test_samples_join_to_the_steps_of_their_rank(three_ranks, tmp_path):
    three_ranks.call(train_on, config_for(1, 3), tmp_path)
    samples = samples_of(tmp_path, 0)
    assert {s.rank for s in samples} == {0, 1, 2}
    for rank in range(3):
        steps = list(read_jsonl(RunDir(tmp_path).attempt(0).steps(rank)))
        end = steps[-1]["start_s"] + steps[-1]["step_s"]
        own = [s.at_s for s in samples if s.rank == rank]
        assert own == sorted(own)
        assert own[0] < steps[-1]["start_s"]  # from about the first step
        assert own[-1] > end - 1e-4  # to a last sample after the last one
        columns = [[each[name] for each in steps] for name in ("start_s", "step_s", "step")]
        joined = step_at(own, *columns, [1] * len(steps))
        inside = [(at, step) for at, step in zip(own, joined, strict=True) if step == step]
        assert inside
        for at, step in inside:
            line = steps[int(step) - 1]
            assert line["start_s"] <= at < line["start_s"] + line["step_s"]
    assert len(list(RunDir(tmp_path).attempt(0).path.glob("host-node*"))) == 1


def test_figures_by_name(tmp_path):
    metrics = train_on(alone(), config_for(1, 1, gpu_every_s=0), tmp_path)
    assert metrics.samples_per_second_per_gpu == metrics.samples_per_s_per_rank == metrics.samples_per_s
    assert metrics.training_time == metrics.seconds_total
    assert metrics.model_flops_per_s_per_rank > 0
    assert metrics.compute_dtypes == {"matmul": "float32"}
    nulls = ("mfu", "peak_flops", "gpu_memory_utilization", "throughput_images_per_sec", "gpu", "processes")
    for name in nulls:
        assert getattr(metrics, name) is None
    assert {"mfu", "peak_flops", "gpu"} <= set(metrics.null_reasons)
    assert not list(RunDir(tmp_path).attempt(0).path.glob("host-node*"))


def test_images_have_their_throughput(tmp_path):
    config = Config.model_validate(
        {
            "model": {"kind": "resnet", "depth": 18, "width": 2},
            "data": {"kind": "synthetic", "shape": [1, 8, 8], "samples": 32, "valid_samples": 0},
            "train": {"steps": 4, "local_batch_size": 2},
            "telemetry": {"warmup_steps": 1, "sinks": []},
            "resources": {"device": "cpu"},
        }
    )
    metrics = train_on(alone(), config, tmp_path)
    assert metrics.throughput_images_per_sec == metrics.samples_per_s > 0
    assert metrics.tokens_per_s is None


def test_gpus_as_they_happen_and_in_the_summary(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    session = nvml.load()
    gpu = next(iter(session["gpus"]))
    monkeypatch.setitem(sys.modules, "pynvml", nvml.module(session))
    monkeypatch.setattr(node_sampling, "identify", lambda _: GpuId(gpu, None))
    metrics = train_on(alone(), config_for(1, 1), tmp_path)
    attempt = RunDir(tmp_path).attempt(0)
    lines = [GpuSample.model_validate(line) for line in read_jsonl(attempt.gpu_samples(0))]
    assert lines[-1].power_w == pytest.approx(640.1)  # the session's last answer, for ever
    assert metrics.gpu.gpus == 1
    assert metrics.gpu.power_mean_w == pytest.approx(640.1, rel=0.3)
    assert metrics.gpu.xids == {"94": 1}
    assert metrics.gpu.ecc_uncorrected is None
    assert metrics.null_reasons["gpu.ecc_uncorrected"] == "no GPU reports it"
    progress = Progress.model_validate(read_json(RunDir(tmp_path).progress))
    assert (progress.gpu_utilization, progress.gpu_power_w) == (1.0, 640.1)
    assert progress.gpu_memory_used_bytes == 62_120_809_984
    events = EventAccumulator(str(attempt.tensorboard)).Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"gpu/utilization", "gpu/memory_used_bytes", "gpu/power_w", "host/cpu_percent"} <= scalars
