"""The memory estimate: against the peak of PyTorch's allocator, and the parts of each strategy."""

import io
import json

import pytest
import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.engine import memory_estimate
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_estimate import (
    MemoryEstimate,
    ModelSize,
    choose_that_fits,
    estimate,
    state_memory,
)
from disttrain.engine.objective import Task
from disttrain.optim.optimizer import build_optimizer
from disttrain.transforms import transforms_of
from tests.support.step_memory import CASES, allocated_peak, config_of, measure_without_transport

GPT = {"kind": "gpt", "layers": 3, "width": 64, "heads": 2}
LANGUAGE = {"kind": "synthetic", "task": "language", "vocab": 512, "seq_len": 64, "samples": 8}


def config(ranks=1, **sections):
    given = {
        "model": GPT,
        "data": LANGUAGE,
        "train": {"steps": 1, "local_batch_size": 8},
        "resources": {"nodes": ranks // 2 or 1, "gpus_per_node": min(ranks, 2)},
    }
    return Config.model_validate(given | sections)


@pytest.mark.parametrize("chunk", [None, 256], ids=["whole loss", "loss chunks"])
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_the_estimate_agrees_with_the_allocator(mode, chunk):
    data = LANGUAGE if chunk is None else {**LANGUAGE, "vocab": 8192}  # the peak is within the loss
    made = config(memory={"activation_checkpointing": mode, "loss_chunk_tokens": chunk}, data=data)
    found, source = estimate(made), build_source(made.data)
    model, task = build_model(made.model, source), Task.of(source, made.memory.loss_in_model)
    for transform in transforms_of(made, torch.device("cpu")):
        model = transform(model)
    batch = tuple(value.expand(8, *value.shape).contiguous() for value in source.train[0])
    peak = allocated_peak(lambda: task.batch_loss(model, batch).backward())
    assert found.gradients_bytes + found.activations_bytes == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("ddp")])
def test_the_estimate_of_a_sharded_model_is_a_close_upper_bound_of_a_step(case):
    """It counts two gathered blocks and the gradient of one at the time of the most activations."""
    made = config_of(case)
    peak = measure_without_transport(made).peak
    assert peak <= estimate(made).total_bytes <= 1.08 * peak


def test_a_strategy_changes_the_state_and_not_the_activations():
    train = {"steps": 1, "local_batch_size": 8, "global_batch_size": 64}
    found = {
        name: estimate(config(4, train=train, parallel={"strategy": name}))
        for name in ("ddp", "fsdp", "hsdp")
    }
    ddp = found["ddp"]
    assert ddp.total_bytes == 5 * ddp.parameters_bytes + ddp.activations_bytes, "with a copy in buckets"
    shares = {name: each.parameters_bytes / ddp.parameters_bytes for name, each in found.items()}
    assert shares == pytest.approx({"ddp": 1, "fsdp": 1 / 4, "hsdp": 1 / 2}, rel=1e-4), "two ranks of a node"
    assert {each.activations_bytes for each in found.values()} == {ddp.activations_bytes}


def test_activations_grow_with_the_batch_and_auto_counts_one_sample():
    found = {
        size: estimate(config(train={"steps": 1, "local_batch_size": size})) for size in (1, 4, 8, 12, "auto")
    }
    assert found["auto"] == found[1]
    steps = [found[b].total_bytes - found[a].total_bytes for a, b in ((4, 8), (8, 12))]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)


def test_answers_of_the_process(monkeypatch, capsys):
    configs = [config(), config(model={"kind": "emulated"}), config(model={"kind": "mlp"}), config(8)]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([made.as_dict() for made in configs])))
    memory_estimate.main()
    answers = json.loads(capsys.readouterr().out)
    assert MemoryEstimate(**answers[0]).strategy == "single"
    assert [answer["reason"][:20] for answer in answers[1:3]] == [
        "model.kind=emulated ",
        "model.kind=mlp takes",
    ]
    candidates = [MemoryEstimate(**each) for each in answers[3]["candidates"]]
    assert [each.strategy for each in candidates] == ["ddp", "hsdp", "fsdp"]
    assert candidates[0].total_bytes > candidates[1].total_bytes > candidates[2].total_bytes
    assert [each["local_batch_size"] for each in answers[3]["candidates"]] == [8] * 3


@pytest.mark.parametrize(
    ("device_bytes", "strategy"),
    [(109, "ddp"), (108, "hsdp"), (50, "fsdp"), (1, "fsdp"), (float("inf"), "ddp")],
)
def test_the_first_strategy_that_fits_with_a_reserve_is_chosen(device_bytes, strategy):
    needs = {"ddp": 100, "hsdp": 60, "fsdp": 40}
    estimates = [MemoryEstimate(name, 1, *[0] * 5, total_bytes=total) for name, total in needs.items()]
    chosen, reason = choose_that_fits(estimates, device_bytes)
    assert chosen == strategy
    assert ("nothing fits" in reason, "unknown" in reason) == (
        device_bytes == 1,
        device_bytes == float("inf"),
    )


def test_a_model_that_cannot_be_estimated_is_replicated():
    strategy, reason = choose_that_fits(map(int, ["no"]), 1)
    assert (strategy, reason.startswith("memory not estimated: ValueError")) == ("ddp", True)


BLOCKS = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=100)
GATHERED = 4 * (100 + 2 * 200) + 4 * (100 + 200)


def state(strategy, size=BLOCKS, ranks=8, accumulates=False, **sections):
    """Bytes of parameters, gradients, optimizer state and communication."""
    base = {"train": {"steps": 1, "local_batch_size": 1}, "resources": {"nodes": ranks}}
    return state_memory(Config.model_validate(base | sections), strategy, size, accumulates)


@pytest.mark.parametrize(
    "options",
    [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.0}],
    ids=str,
)
def test_the_state_of_a_replicated_model_is_that_of_torch_after_a_step(options):
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 100))
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model.parameters(), config(optim=options).optim)
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    moments = [
        t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()
    ]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    sizes = (sum(t.nbytes for t in tensors) for tensors in (model.parameters(), gradients, moments, ()))
    assert state("single", ModelSize.of(model), optim=options) == (*sizes,)


@pytest.mark.parametrize(
    ("options", "accumulates", "total"),
    [({}, False, 16_000), ({}, True, 20_000), ({"gradient_as_bucket_view": False}, False, 20_000)],
)
def test_buckets_of_ddp_may_be_copies(options, accumulates, total):
    assert sum(state("ddp", accumulates=accumulates, parallel={"ddp": options})) == total


@pytest.mark.parametrize(
    ("options", "gathered"),
    [
        ({}, GATHERED),
        ({"backward_prefetch": 2}, GATHERED + 4 * 200),
        ({"forward_prefetch": 2}, GATHERED),
        ({"forward_prefetch": 4}, 4 * 1000),
        ({"reshard_after_forward": False}, 4 * 1000 + 4 * 300),
    ],
)
def test_sharding_divides_the_state_and_gathers_blocks(options, gathered):
    assert state("fsdp", parallel={"fsdp": options}) == (500, 500, 1000, gathered)


def test_further_options_of_sharded_models():
    def fsdp(size=BLOCKS, **options):
        return state("fsdp", size, accumulates=True, parallel={"fsdp": options})

    assert state("fsdp", precision={"dtype": "bf16"})[3] == GATHERED // 2
    assert sum(state("fsdp", ranks=1)) == 16 * 1000 + GATHERED, "a copy of the rank's own parameters"
    assert state("hsdp", parallel={"hsdp": {"shard_size": 2}})[0] == 2000
    whole = state("fsdp", ModelSize(parameters=1000, trained=900), ranks=3)  # no blocks
    assert (whole[0], whole[3]) == (4 * 334, 4 * (1000 + 900))
    assert fsdp(cpu_offload=True) == (0, 0, 0, GATHERED + 2 * 4 * 25)
    embedding = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=400)
    assert fsdp(embedding, cpu_offload=True)[3] == fsdp(embedding)[3] + 2 * 4 * 50
    assert fsdp(accumulation="no_sync")[1] == 4 * 1000
