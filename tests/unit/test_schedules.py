"""Learning-rate schedules and scaling rules against their closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.schedules import learning_rate, peak_lr
from disttrain.config.sections.optim import OptimConfig


def test_warm_up_is_linear_and_reaches_the_peak():
    optim = OptimConfig(lr=0.5, warmup_steps=5)
    rates = [learning_rate(step, 100, optim, 8) for step in range(1, 8)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decay_starts_at_the_peak_and_ends_at_the_floor(schedule):
    optim = OptimConfig(lr=1.0, warmup_steps=10, schedule=schedule, final_lr_ratio=0.2)
    assert learning_rate(10, 110, optim, 8) == pytest.approx(1.0)
    assert learning_rate(60, 110, optim, 8) == pytest.approx(0.6)  # half-way, for both
    assert learning_rate(110, 110, optim, 8) == pytest.approx(0.2)


def test_cosine_at_a_quarter():
    optim = OptimConfig(lr=1.0, schedule="cosine")
    assert learning_rate(25, 100, optim, 8) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_step_schedule_drops_every_so_many_steps():
    optim = OptimConfig(lr=1.0, schedule="step", step_every=3, step_factor=0.5)
    assert [learning_rate(s, 9, optim, 8) for s in range(1, 10)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_the_schedule_begins_with_the_step_after_the_warm_up():
    drops = OptimConfig(lr=1.0, warmup_steps=2, schedule="step", step_every=2, step_factor=0.5)
    assert [learning_rate(s, 9, drops, 8) for s in range(1, 7)] == [0.5, 1, 1, 1, 0.5, 0.5]
    line = OptimConfig(lr=1.0, warmup_steps=9, schedule="linear", final_lr_ratio=0.2)
    assert learning_rate(10, 10, line, 8) == pytest.approx(0.2)  # the one step after the warm-up is the last


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_cosine_restarts_follow_the_scheduler_of_torch(factor):
    """But for the last step of a cycle, which is at the floor, as the last step of `cosine` is."""
    optim = OptimConfig(
        lr=1.0, schedule="cosine_restarts", restart_every=4, restart_factor=factor, final_lr_ratio=0.1
    )
    torch_optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(torch_optimizer, 4, factor, eta_min=0.1)
    ends = {1: [*range(4, 30, 4)], 2: [4, 12, 28], 3: [4, 16, 52]}[factor]
    for number in range(1, 30):
        torch_optimizer.step()
        scheduler.step()
        found = learning_rate(number, 30, optim, 8)
        assert found == pytest.approx(0.1 if number in ends else scheduler.get_last_lr()[0])


def test_a_cycle_begins_with_the_step_after_the_warm_up():
    optim = OptimConfig(lr=1.0, warmup_steps=3, schedule="cosine_restarts", restart_every=2)
    rates = [learning_rate(step, 9, optim, 8) for step in range(1, 8)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 0.5, 0, 0.5, 0])


@given(
    st.sampled_from(["constant", "cosine", "linear"]),
    st.integers(0, 50),
    st.integers(51, 500),
    st.floats(0, 1),
)
def test_rate_never_exceeds_the_peak_nor_goes_below_the_floor_after_warm_up(schedule, warmup, steps, floor):
    optim = OptimConfig(lr=2.0, warmup_steps=warmup, schedule=schedule, final_lr_ratio=floor)
    rates = [learning_rate(step, steps, optim, 8) for step in range(1, steps + 1)]
    assert max(rates) <= 2.0 + 1e-9
    assert min(rates[warmup:]) >= 2.0 * floor - 1e-9
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("linear", 0.8), ("sqrt", 0.1 * math.sqrt(8))])
def test_batch_size_scaling_rules(rule, expected):
    base = None if rule == "none" else 32
    assert peak_lr(OptimConfig(lr=0.1, lr_scaling=rule, lr_base_batch=base), 256) == pytest.approx(expected)


def test_the_rate_follows_the_global_batch():
    optim = OptimConfig(lr=0.1, warmup_steps=2, lr_scaling="linear", lr_base_batch=32)
    assert [learning_rate(step, 9, optim, 64) for step in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.2])
