"""A `Stepper` of given parts on one rank, for tests of a single step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.engine.objective import Objective, Task
from disttrain.engine.spec import TrainSpec
from disttrain.engine.step import Stepper
from disttrain.models.flops import ModelCost
from disttrain.optim.optimizer import build_optimizer
from disttrain.optim.precision import Precision
from disttrain.parallel.base import Mesh, Strategy
from disttrain.telemetry.step_clock import StepClock
from tests.support.stopping import alone


def stepper(
    model: nn.Module,
    plan: BatchPlan,
    *,
    objective: Objective | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    strategy: Strategy | None = None,
    precision: Precision | None = None,
    steps: int = 10,
    **optim: Any,
) -> Stepper:
    """By default a classification on one rank, in the parameters' own dtype."""
    config = Config.model_validate(
        {"optim": optim, "train": {"steps": steps, "local_batch_size": plan.local}}
    )
    strategy = strategy or Strategy()
    optimizer = optimizer or build_optimizer(strategy.parameters(model), config.optim)
    objective, mesh = objective or Task("classification"), Mesh(rank=0)
    made = optimizer
    spec = TrainSpec(config, lambda: model, lambda *_: made, objective, mesh, plan, steps, None, "requested")
    clock, cost = StepClock(), ModelCost(0)
    clock.start()
    return Stepper(spec, strategy, alone(), model, made, precision or Precision(), clock, cost, {})
