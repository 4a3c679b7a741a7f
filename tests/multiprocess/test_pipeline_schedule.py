"""The schedules of a pipeline: their messages, and their bubble in time that the passes themselves count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.pipeline import Pipeline, build
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

FORWARD, BACKWARD = 1.0, 2.0
"""Seconds of the passes of a stage, in its own time."""
RUNS = [("gpipe", 4), ("gpipe", 8), ("1f1b", 4), ("1f1b", 8)]


class TimedStage(nn.Module):
    """Advances its own time by the cost of each pass. Activations and gradients carry the time at which they
    were sent, and a pass begins when its input has been sent: no clock is read, and the result is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.now_s = 0.0

    def pipeline_stage(self, stage: int, stages: int) -> nn.Module:
        return self

    def forward(self, sent_s: Tensor) -> Tensor:
        output: Tensor = _TimedPass.apply(sent_s + self.weight, self)
        return output

    def run(self, sent_s: Tensor, cost_s: float) -> Tensor:
        self.now_s = max(self.now_s, sent_s.max().item()) + cost_s
        return torch.full_like(sent_s, self.now_s)


class _TimedPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent_s: Tensor, stage: TimedStage) -> Tensor:
        ctx.stage = stage
        return stage.run(sent_s, FORWARD)

    @staticmethod
    def backward(ctx: Any, sent_s: Tensor) -> Any:
        return ctx.stage.run(sent_s, BACKWARD), None


def pipeline_of(world: World, stages: int, schedule: str) -> tuple[Pipeline, TimedStage]:
    pipeline = {"stages": stages, "schedule": schedule}
    config = ParallelConfig.model_validate({"strategy": "pipeline", "pipeline": pipeline})
    strategy = build(config)
    model = strategy.apply(TimedStage(), strategy.mesh(world), world)
    assert isinstance(model, TimedStage)
    return strategy, model


def run_step(strategy: Pipeline, model: TimedStage, micro_batches: int) -> Tensor:
    batches = [(torch.zeros(1), torch.zeros(1))] * micro_batches
    loss: Callable[..., Tensor] = lambda model, batch: model(batch[0]).sum() / 1e6  # noqa: E731
    return strategy.run_schedule(model, batches, loss, nullcontext, nullcontext)


def last_s(world: World, schedule: str, micro_batches: int) -> float:
    """The end of a step in the time of this rank's stage."""
    strategy, model = pipeline_of(world, world.size, schedule)
    run_step(strategy, model, micro_batches)  # the first step also finds the shapes of activations
    model.now_s = 0.0
    run_step(strategy, model, micro_batches)
    return model.now_s


@pytest.mark.parametrize(("schedule", "micro_batches"), RUNS)
@pytest.mark.parametrize("stages", [2, 4])
def test_the_bubble_of_equal_stages_is_that_of_the_formula(
    request: pytest.FixtureRequest, stages: int, schedule: str, micro_batches: int
) -> None:
    ranks: Ranks = request.getfixturevalue("two_ranks" if stages == 2 else "four_ranks")
    step_s = max(ranks.call(last_s, schedule, micro_batches))
    bubble = 1 - micro_batches * (FORWARD + BACKWARD) / step_s
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def messages(world: World, stages: int, schedule: str, micro_batches: int) -> dict[str, int]:
    """Number of messages of the second step, by kind."""
    strategy, model = pipeline_of(world, stages, schedule)
    run_step(strategy, model, micro_batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run_step(strategy, model, micro_batches)
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith("gloo:")}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_micro_batch_is_one_message_each_way_and_gradients_travel_once_a_step(
    four_ranks: Ranks, schedule: str
) -> None:
    """Two replicas of two stages."""
    found = four_ranks.call(messages, 2, schedule, 6)
    for counts in found:
        assert counts.pop("gloo:broadcast") == 1  # the loss
        assert counts == {"gloo:send": 6, "gloo:recv": 6, "gloo:all_reduce": 1}
