"""The layout of the ranks: meshes of the strategies, stages of a pipeline, and the one process of dp."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from disttrain import __main__ as entry
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.parsing import Draft, check, with_batch
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.data.loader import GlobalOrder, RankBatches
from disttrain.engine.memory_estimate import estimate, resolve_strategy
from disttrain.engine.script_config import config_of_script
from disttrain.errors import ConfigError
from disttrain.hardware.node_sampler import GpuId
from disttrain.models.gpt import GPT
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.records.dataset import DataShape
from disttrain.records.gpu_hours import devices_of
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.run_json import ranks_per_node
from disttrain.runtime import device, device_agreement
from disttrain.runtime.process_group import World, open_world
from disttrain.telemetry import node_sampling
from jobs.node.launch import launch_command
from jobs.node.rendezvous import Endpoint
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.train_script import script_of_checkout


def world(rank=0, nodes=1, per_node=1, device="cpu", gpus=1):
    return World(
        rank=rank, size=nodes * per_node, local_rank=rank % per_node, local_size=per_node,
        device=torch.device(device), backend=None, gpus_per_rank=gpus,
    )  # fmt: skip


def strategy_of(name, **options):
    return build_strategy(name, ParallelConfig.model_validate({"strategy": name, **options}))


@pytest.mark.parametrize(
    ("strategy", "nodes", "per_node", "options", "layout"),
    [
        ("ddp", 2, 4, {}, (8, 1, 1)),
        ("fsdp", 2, 4, {}, (1, 8, 1)),
        ("hsdp", 2, 4, {}, (2, 4, 1)),
        ("hsdp", 4, 1, {}, (4, 1, 1)),
        ("hsdp", 4, 1, {"hsdp": {"shard_size": 2}}, (2, 2, 1)),
        ("pipeline", 2, 4, {"pipeline": {"stages": 2}}, (4, 1, 2)),
    ],
)
def test_strategies_divide_the_world(strategy, nodes, per_node, options, layout):
    ranks = range(nodes * per_node)
    meshes = [strategy_of(strategy, **options).mesh(world(rank, nodes, per_node)) for rank in ranks]
    assert {(mesh.replicate, mesh.shard, mesh.pipeline) for mesh in meshes} == {layout}
    assert [mesh.data_rank for mesh in meshes] == [rank % (len(ranks) // layout[2]) for rank in ranks]


def test_stages_read_the_same_samples_and_the_other_ranks_cover_each_global_batch_once():
    meshes = [Mesh(rank, replicate=2, shard=2, pipeline=2) for rank in range(8)]
    assert {(mesh.size, mesh.data_size) for mesh in meshes} == {(8, 4)}
    assert [(mesh.stage, mesh.stage_ranks) for mesh in meshes[3:5]] == [(0, (0, 1, 2, 3)), (1, (4, 5, 6, 7))]
    order, plan = GlobalOrder(16, 0), BatchPlan(1, 2, 4)
    read = [[index for [index] in RankBatches(order, plan, mesh.data_rank, 2)] for mesh in meshes]
    assert read[:4] == read[4:]
    assert sorted(index for rank in read[:4] for index in rank) == list(range(16))


# --- pipeline ---


@pytest.mark.parametrize(
    ("base_ranks", "local", "schedule", "plan"),
    [
        (None, 2, "1f1b", BatchPlan(2, 4, 2)),  # two replicas of four stages
        (4, 2, "1f1b", BatchPlan(2, 8, 2)),  # a sweep scales by the replicas of a stage
        (None, 4, "gpipe", BatchPlan(4, 2, 2)),  # fewer micro-batches than stages
    ],
)
def test_the_micro_batches_of_a_pipeline_are_its_accumulation(base_ranks, local, schedule, plan):
    draft = Draft(
        {
            "model": {"kind": "gpt", "tie_weights": False},
            "train": {"steps": 1, "local_batch_size": local, "global_batch_size": 16},
            "parallel": {"strategy": "pipeline", "pipeline": {"stages": 4, "schedule": schedule}},
            "resources": {"nodes": 2, "gpus_per_node": 4},
        }
    )
    assert with_batch(check(draft), draft, base_ranks)[1] == plan


@pytest.fixture
def gpt():
    torch.manual_seed(0)
    words = DataShape(task="language", shape=(6,), classes=11)
    return GPT(words, layers=5, width=8, heads=2, mlp_ratio=2, tie_weights=False)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_stages_one_after_another_are_the_model(gpt, stages):
    parts = [gpt.pipeline_stage(stage, stages) for stage in range(stages)]
    assert [name for part in parts for name in part.state_dict()] == list(gpt.state_dict())
    tokens = torch.randint(11, (2, 6))
    assert torch.equal(nn.Sequential(*parts)(tokens), gpt(tokens))


def test_a_model_that_no_pipeline_can_split_is_refused(gpt):
    strategy = strategy_of("pipeline")
    with pytest.raises(ConfigError, match="cannot split a OptimizedModule"):
        strategy.apply(torch.compile(gpt), Mesh(0, pipeline=2), world())
    gpt.forward = lambda tokens: tokens
    with pytest.raises(ConfigError, match="replaced the forward pass"):
        strategy.apply(gpt, Mesh(0, pipeline=2), world())


# --- dp ---


def dp_config(gpus):
    sections = {"parallel": {"strategy": "dp"}, "resources": {"gpus_per_node": gpus}}
    return check(Draft({**sections, "train": {"steps": 1, "local_batch_size": 8}}))


@pytest.mark.parametrize(
    ("device", "gpus", "form"),
    [("cpu", 1, "single on the CPU"), ("cuda", 1, "single with one GPU"), ("cuda", 4, "over 4 GPUs")],
)
def test_the_form_of_dp_follows_the_devices(device, gpus, form):
    name, reason = resolve_strategy(dp_config(gpus), world(device=device, gpus=gpus))
    assert (name, form in reason) == ("dp", True)


def test_the_job_requests_and_counts_the_gpus_of_one_process(tmp_path):
    config = dp_config(4)
    plain = config.as_dict()
    assert (config.world_size, ranks_per_node(plain)) == (1, 1)
    record, attempt = {"config": plain, "run_key": "k"}, Attempt(tmp_path, 0)
    words = launch_command(RunDir(tmp_path), attempt, record, 0, 1, Endpoint("node0", 2000))
    assert words[words.index("--nproc-per-node") + 1] == "1"
    assert "#SBATCH --gpus-per-node=4" in script_of_checkout(
        plain, Profile(name="site", gpus="gpus-per-node")
    )
    assert (devices_of(record, "GPU-hours"), devices_of(record, "CPU rank-hours")) == (4, 1)
    with pytest.raises(ConfigError, match="dp divides the batch among 4 GPUs"):
        estimate(config)


@pytest.mark.parametrize(("visible", "taken"), [(4, ("cuda", 4)), (2, ("cpu", 1))])
def test_the_process_takes_all_its_gpus_or_the_cpu(monkeypatch, visible, taken):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(device, "pci_gpus", lambda: visible)
    monkeypatch.setattr(device_agreement, "choose_precision", lambda *_: ("fp32", ""))
    with open_world(dp_config(4)) as opened:
        assert (opened.device.type, opened.gpus_per_rank) == taken


def test_the_figures_count_the_gpus_of_the_process(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(node_sampling, "identify", lambda device: GpuId(f"GPU-{device.index or 0}", None))
    telemetry = node_sampling.NodeTelemetry(
        Attempt(tmp_path, 0), world(device="cuda", gpus=4), TelemetryConfig(gpu_every_s=0)
    )
    telemetry.start(lambda: None, lambda: True)
    assert (telemetry.devices, telemetry.device) == (4, "GPU-0")


@pytest.mark.parametrize(("device", "gpus"), [("shared", 1), ("cpu", 1), ("auto", 8)])
def test_a_script_on_one_device_asks_for_one_gpu(monkeypatch, device, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    sections = {"parallel": {"strategy": "dp"}, "resources": {"device": device}}
    config = config_of_script({"kind": "gpt"}, BatchPlan(8, 1, 1), sections, steps=1)
    assert config.resources.gpus_per_node == gpus


def test_dp_is_refused_on_several_ranks(monkeypatch, tmp_path):
    (tmp_path / "dp.yaml").write_text("{parallel: {strategy: dp}, train: {steps: 1, local_batch_size: 8}}")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match="dp is one process"):
        entry.read_config(*entry.parse_arguments(["--config", str(tmp_path / "dp.yaml")]))


class AutocastDtype(nn.Module):
    """Its output is 1 if autocast computes in float16."""

    def forward(self, x):
        return x.new_tensor(torch.get_autocast_dtype("cpu") == torch.float16)


def test_the_threads_of_data_parallel_compute_in_the_dtype_of_autocast():
    strategy = strategy_of("dp")
    strategy.autocast_dtype = torch.float16  # on the CPU a new thread has bfloat16, on a GPU float16
    replica = strategy.unwrap(strategy.apply(AutocastDtype(), Mesh(0), world(gpus=2)))

    def outputs():
        with torch.autocast("cpu"):  # as `torch.nn.parallel.parallel_apply`
            under_autocast = float(replica(torch.zeros(1)))
        return under_autocast, float(replica(torch.zeros(1)))

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(outputs).result() == (1.0, 0.0)
