"""The constants of a run, of a config, a script or a loop of one's own."""

from __future__ import annotations

from typing import Any

from torch import nn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.data.source import Source
from disttrain.models.flops import ModelCost, Peak
from disttrain.parallel.base import Strategy
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.facts import DIFFERENT_COLLECTIVES, Communication, RunFacts
from disttrain.telemetry.machine_facts import describe_machine


def uncounted(model: nn.Module) -> ModelCost:
    """The cost of a model of the user: its parameters alone."""
    no_peak = Peak(None, None, None, "no peak was looked up")
    return ModelCost(sum(p.numel() for p in model.parameters()), None, no_peak)


def communication_of(strategy: Strategy, parallel_model: nn.Module) -> Communication:
    """How the communication of a strategy is measured, with the model that it made parallel."""
    compares = strategy.compares_collectives
    return Communication(
        reason=strategy.comm_reason,
        profiles_collectives=strategy.comm_method is not None and compares,
        unprofiled_reason=None if compares else DIFFERENT_COLLECTIVES,
        groups=strategy.comm_groups(parallel_model),
        compares_passes=compares,
    )


def facts_of(
    output: RunOutput,
    world: World,
    config: Config,
    plan: BatchPlan,
    steps: int,
    cost: ModelCost,
    communication: Communication,
    source: Source | None = None,
    **fields: Any,
) -> RunFacts:
    """The constants of a run; `fields` are further ones of `Metrics`. All ranks together."""
    metrics = {
        **output.identity(),
        **describe_machine(world, config),
        "model": config.model.kind,
        **cost.metrics_fields(),
        "dataset": source.record if source else None,
        "steps_total": steps,
        "local_batch_size": plan.local,
        "accumulation": plan.accumulation,
        "global_batch_size": plan.global_,
        **fields,
    }
    return RunFacts(
        metrics,
        communication,
        tokens_per_sample=source.tokens_per_sample if source else None,
        samples_are_images=source.images if source else False,
        peak_reason=cost.peak.reason,
    )
