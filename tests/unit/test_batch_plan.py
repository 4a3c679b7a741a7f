"""Batch sizes along a sweep, and the strategy of a run before its job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.auto_strategy import allowed, planned_strategy
from disttrain.config.batch_plan import BatchPlan, plan_batch, scale_batch
from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError

sizes, ranks, accumulations = st.integers(1, 64), st.integers(1, 16), st.integers(1, 8)
TRAIN = {"train": {"steps": 1, "local_batch_size": 1}}


def config_of(**sections):
    return Config.model_validate(sections)


@given(local=st.none() | sizes, total=st.none() | st.integers(1, 512), world=ranks)
def test_a_batch_plan_keeps_the_given_sizes_or_is_refused_if_it_cannot(local, total, world):
    try:
        plan = plan_batch(local, total, world)
    except ConfigError:
        assert (local is None and total is None) or total % ((local or 1) * world)
        return
    assert plan.local * plan.accumulation * plan.world == plan.global_
    assert (plan.local, plan.global_, plan.world) == (local or plan.local, total or plan.global_, world)


@given(local=sizes, accumulation=accumulations, base=ranks, world=ranks)
def test_weak_scaling_holds_the_local_batch_and_strong_scaling_the_global_one(
    local, accumulation, base, world
):
    total = local * accumulation * base
    plan = scale_batch(local, total, base_world=base, world=world, scaling="weak")
    assert plan == BatchPlan(local, accumulation, world)
    try:
        plan = scale_batch(local, total, base_world=base, world=world, scaling="strong")
    except ConfigError:
        assert total % (min(local, total // world) * world or total + 1)
    else:
        assert (plan.global_, plan.world, plan.local <= local) == (total, world, True)


@pytest.mark.parametrize(
    ("local", "total", "base", "world", "expected"),
    [
        (8, 64, 1, 2, BatchPlan(8, 4, 2)),  # accumulation shrinks first
        (8, 64, 1, 16, BatchPlan(4, 1, 16)),  # then the local batch
        (None, 64, 1, 4, BatchPlan(16, 1, 4)),
        (8, None, 2, 4, BatchPlan(4, 1, 4)),
    ],
)
def test_strong_scaling_by_example(local, total, base, world, expected):
    assert scale_batch(local, total, base_world=base, world=world, scaling="strong") == expected


def test_an_accumulation_stands_for_either_batch_size():
    assert plan_batch(4, None, 2, 3) == plan_batch(None, 24, 2, 3) == plan_batch(4, 24, 2, 3)
    with pytest.raises(ConfigError, match="is 24 samples, not"):
        plan_batch(4, 16, 2, 3)


# --- strategies ---


def ranks_of(nodes, per_node, **sections):
    return config_of(**TRAIN, resources={"nodes": nodes, "gpus_per_node": per_node}, **sections)


@pytest.mark.parametrize(
    ("sections", "candidates"),
    [
        ({}, ["ddp", "hsdp", "fsdp"]),
        ({"parallel": {"hsdp": {"shard_size": 3}}}, ["ddp", "fsdp"]),
        ({"telemetry": {"layer_passes": 2}}, ["ddp"]),
        ({"optim": {"name": "sgd", "fused": True}}, ["ddp"]),
        ({"compile": {"scope": "model"}}, ["ddp"]),
        ({"parallel": {"gradient_communication": {"scheme": "bf16"}}}, ["ddp"]),
    ],
    ids=str,
)
def test_a_strategy_that_the_config_would_be_refused_with_is_no_candidate(sections, candidates):
    config = ranks_of(2, 2, **sections)
    found, reason = allowed(config, several_nodes=True)
    assert (found, reason is not None) == (candidates, candidates == ["ddp"])
    assert planned_strategy(config) == ("ddp" if candidates == ["ddp"] else "auto")


@pytest.mark.parametrize(
    ("config", "planned"),
    [
        (ranks_of(1, 1), "single"),
        (ranks_of(2, 1, parallel={"strategy": "fsdp"}), "fsdp"),
        (ranks_of(2, 1, model={"kind": "emulated"}), "ddp"),
        (ranks_of(1, 4, parallel={"strategy": "dp"}), "dp"),
    ],
)
def test_the_strategy_before_the_job(config, planned):
    assert planned_strategy(config) == planned
