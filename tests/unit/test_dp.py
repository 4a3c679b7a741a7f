"""Strategy dp: what it becomes without GPUs, and with several ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from disttrain import __main__ as entry
from disttrain.config.auto_strategy import choose_strategy
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.engine.memory_estimate import estimate, resolve_strategy
from disttrain.engine.script_config import config_of_script
from disttrain.errors import ConfigError
from disttrain.hardware.node_sampler import GpuId
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.records.gpu_hours import devices_of
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.run_json import ranks_per_node
from disttrain.runtime.process import RankInfo
from disttrain.runtime.process_group import World, open_world
from disttrain.telemetry import node_sampling
from disttrain.telemetry.summary import rates
from docs.generate.slurm import by_hand
from jobs.node.launch import launch_command
from jobs.node.rendezvous import Endpoint
from jobs.schedulers.slurm.profile import Profile


def world(device: str = "cpu", gpus: int = 1) -> World:
    place = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "backend": None}
    return World(**place, device=torch.device(device), gpus_per_rank=gpus)


def dp_config(gpus: int, **resources) -> Config:
    sections = {"parallel": {"strategy": "dp"}, "resources": {"gpus_per_node": gpus, **resources}}
    return check(Draft({**sections, "train": {"steps": 1, "local_batch_size": 8}}))


def test_on_the_cpu_it_is_single_and_the_reason_names_it():
    config = Config.model_validate({"parallel": {"strategy": "dp"}})
    name, reason = resolve_strategy(config, world())
    assert (name, reason.partition(":")[0]) == ("dp", "requested, but dp is single on the CPU")
    model = nn.Linear(2, 2)
    strategy = build_strategy("dp", ParallelConfig())
    assert strategy.unwrap(strategy.apply(model, Mesh(0), world())) is model


@pytest.mark.parametrize(("gpus", "form"), [(1, "is single with one GPU"), (4, "DataParallel over 4 GPUs")])
def test_the_reason_counts_the_gpus_of_the_job(gpus, form):
    assert form in resolve_strategy(dp_config(gpus), world("cuda", gpus))[1]


def test_the_job_requests_the_gpus_of_one_process():
    config = dp_config(4)
    assert (config.world_size, ranks_per_node(config.as_dict())) == (1, 1)
    record = {"config": config.as_dict(), "run_key": "k"}
    run = RunDir("/runs/s/r")
    endpoint = Endpoint("node0", 2000)
    words = launch_command(run, Attempt("/runs/s/r", 0), record, 0, 1, endpoint)
    assert words[words.index("--nproc-per-node") + 1] == "1"
    assert "#SBATCH --gpus-per-node=4" in by_hand(
        config.as_dict(), Profile(name="site", gpus="gpus-per-node")
    )
    assert (devices_of(record, "GPU-hours"), devices_of(record, "CPU rank-hours")) == (4, 1)


def test_the_process_takes_the_gpus_or_the_cpu(monkeypatch):
    for visible, expected in ((4, ("cuda", 4)), (2, ("cpu", 1))):
        monkeypatch.setattr(torch.cuda, "device_count", lambda visible=visible: visible)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr("disttrain.runtime.device_agreement.choose_precision", lambda *_: ("fp32", ""))
        with open_world(dp_config(4)) as opened:
            assert (opened.device.type, opened.gpus_per_rank) == expected


def test_the_figures_count_the_gpus_of_data_parallel(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(node_sampling, "identify", lambda device: GpuId(f"GPU-{device.index or 0}", None))
    attempt, config = Attempt(tmp_path, 0), TelemetryConfig(gpu_every_s=0)
    telemetry = node_sampling.NodeTelemetry(attempt, world("cuda", 4), config)
    telemetry.start(lambda: None, lambda: True)
    assert (telemetry.devices, telemetry.device) == (4, "GPU-0")
    fields = rates(800.0, 1, telemetry.devices, flops_per_sample=10, peak_flops=4000.0)
    assert (fields["samples_per_second_per_gpu"], fields["mfu"]) == (200, 0.5)


class AutocastDtype(nn.Module):
    """Its output is 1 if autocast computes in float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_tensor(torch.get_autocast_dtype("cpu") == torch.float16)


def test_the_threads_of_data_parallel_compute_in_the_dtype_of_autocast():
    strategy = build_strategy("dp", ParallelConfig())
    strategy.autocast_dtype = torch.float16  # on the CPU a new thread has bfloat16, on a GPU float16
    replica = strategy.unwrap(strategy.apply(AutocastDtype(), Mesh(0), world("cpu", 2)))

    def found() -> tuple[float, float]:
        with torch.autocast("cpu", enabled=True):  # as `torch.nn.parallel.parallel_apply`
            under_autocast = float(replica(torch.zeros(1)))
        return under_autocast, float(replica(torch.zeros(1)))

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(found).result() == (1.0, 0.0)


def test_the_memory_of_replicas_has_no_estimate():
    with pytest.raises(ConfigError, match=r"parallel.strategy=dp divides the batch among 4 GPUs"):
        estimate(dp_config(4))


def test_a_trainer_on_one_device_asks_for_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for device, expected in (("shared", 1), ("cpu", 1), ("auto", 8)):
        given = {"parallel": {"strategy": "dp"}, "resources": {"device": device}}
        config = config_of_script({"kind": "gpt"}, BatchPlan(8, 1, 1), given, steps=1)
        assert config.resources.gpus_per_node == expected


def test_several_ranks_are_refused(monkeypatch, tmp_path):
    (tmp_path / "dp.yaml").write_text("{parallel: {strategy: dp}, train: {steps: 1, local_batch_size: 8}}")
    monkeypatch.setattr(entry, "rank_info", lambda: RankInfo(rank=0, size=2, local_rank=0, local_size=2))
    with pytest.raises(ConfigError, match=r"dp is one process; start it with --nproc-per-node=1, or use ddp"):
        entry.read_config(*entry.parse_arguments(["--config", str(tmp_path / "dp.yaml")]))
    with pytest.raises(ConfigError, match=r"parallel.strategy=dp needs 1 rank, not 4; use ddp or auto"):
        choose_strategy("dp", 4)
