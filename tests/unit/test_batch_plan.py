"""Batch arithmetic: what is held, what follows, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.batch_plan import BatchPlan, plan_batch, scale_batch
from disttrain.errors import ConfigError

sizes = st.integers(1, 64)
ranks = st.integers(1, 16)


@given(local=sizes, accumulation=st.integers(1, 8), world=ranks)
def test_the_three_factors_multiply_to_the_global_batch(local, accumulation, world):
    total = local * accumulation * world
    plan = plan_batch(local, total, world)
    assert plan == BatchPlan(local, accumulation, world)
    assert plan.global_ == total


@given(local=st.none() | sizes, total=st.none() | st.integers(1, 512), world=ranks)
def test_a_plan_keeps_what_was_given_and_is_refused_only_when_it_cannot(local, total, world):
    try:
        plan = plan_batch(local, total, world)
    except ConfigError:
        assert (local is None and total is None) or total % ((local or 1) * world)
        return
    assert plan.local * plan.accumulation * plan.world == plan.global_
    assert plan.world == world
    assert plan.local == (local or plan.local)
    assert plan.global_ == (total or plan.global_)


@given(local=sizes, accumulation=st.integers(1, 8), base=ranks, world=ranks)
def test_weak_scaling_holds_the_local_batch_and_the_accumulation(local, accumulation, base, world):
    plan = scale_batch(local, local * accumulation * base, base_world=base, world=world, scaling="weak")
    assert plan == BatchPlan(local, accumulation, world)


@given(local=sizes, accumulation=st.integers(1, 8), base=ranks, world=ranks)
def test_strong_scaling_holds_the_global_batch(local, accumulation, base, world):
    total = local * accumulation * base
    try:
        plan = scale_batch(local, total, base_world=base, world=world, scaling="strong")
    except ConfigError:
        assert total % (min(local, total // world) * world or total + 1)
        return
    assert plan.global_ == total
    assert plan.world == world
    assert plan.local <= local


@pytest.mark.parametrize(
    ("local", "total", "base", "world", "expected"),
    [
        (8, 64, 1, 2, BatchPlan(8, 4, 2)),  # accumulation shrinks first
        (8, 64, 1, 8, BatchPlan(8, 1, 8)),
        (8, 64, 1, 16, BatchPlan(4, 1, 16)),  # then the local batch
        (None, 64, 1, 4, BatchPlan(16, 1, 4)),
        (8, None, 2, 4, BatchPlan(4, 1, 4)),
    ],
)
def test_strong_scaling_by_example(local, total, base, world, expected):
    assert scale_batch(local, total, base_world=base, world=world, scaling="strong") == expected


def test_an_accumulation_stands_for_either_batch_size():
    assert plan_batch(4, None, 2, 3) == plan_batch(None, 24, 2, 3) == plan_batch(4, 24, 2, 3)
    with pytest.raises(ConfigError, match="neither is given"):
        plan_batch(None, None, 1)
    with pytest.raises(ConfigError, match=r"train.accumulation=3 x train.local_batch_size=4 x 2 ranks is 24"):
        plan_batch(4, 16, 2, 3)
