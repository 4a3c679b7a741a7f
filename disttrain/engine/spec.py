"""`TrainSpec`: the parts of a training before they are built, of a config or of a script; and `RunFacts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from disttrain.config.auto_strategy import choose_strategy
from disttrain.config.batch_plan import BatchPlan, plan_batch
from disttrain.config.config_tree import Config
from disttrain.data.loader import GlobalOrder, RankBatches, make_loader
from disttrain.data.source import Batch, Source, sample_count
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_estimate import resolve_strategy
from disttrain.engine.objective import Objective, Task
from disttrain.errors import ConfigError
from disttrain.models.flops import ModelCost, Peak
from disttrain.optim.optimizer import build_optimizer
from disttrain.parallel.base import Mesh, Strategy, build_strategy
from disttrain.parallel.dp import dp_reason
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.facts import Communication, RunFacts, describe_machine

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples."""
MakeOptimizer = Callable[[Iterable[nn.Parameter], nn.Module], torch.optim.Optimizer]
"""Makes the optimizer of the parameters that this rank updates, in the unwrapped model."""


@dataclass(frozen=True)
class TrainSpec:
    """One training on the ranks of `mesh`, from which `build_stepper` builds."""

    config: Config
    """`parallel.strategy` and `train.local_batch_size` are no longer `auto`."""
    make_model: Callable[[], nn.Module]
    """Draws the initial weights from the random number generators."""
    make_optimizer: MakeOptimizer
    """The learning rates of its groups are the peaks of the schedule."""
    objective: Objective
    mesh: Mesh
    plan: BatchPlan
    steps: int
    """Optimizer steps of the whole training."""
    source: Source | None
    """The data; None for a script, which has its own."""
    strategy_reason: str
    """Reason for the strategy."""

    def example(self) -> Batch:
        """A micro-batch of the first samples of `source`, in host memory."""
        assert self.source is not None
        train, samples = self.source.train, self.source.record.train_samples
        return default_collate([train[i % samples] for i in range(self.plan.local)])

    def batches(
        self,
        dataset: Dataset[Any],
        start_step: int,
        device: torch.device,
        workers: int | None = None,
        collate: Collate | None = None,
    ) -> Iterator[Any]:
        """The micro-batches of this rank after `start_step` steps, by default with `data.workers` loader
        processes.

        Building the iterator draws from torch's random number generator.
        """
        settings, seed, rank = self.config.data, self.config.train.seed, self.mesh.data_rank
        if workers is not None:
            settings = settings.model_copy(update={"workers": workers})
        own = RankBatches(GlobalOrder(sample_count(dataset), seed), self.plan, rank, self.steps, start_step)
        loader = make_loader(
            dataset, own, settings, device, seed=(seed, rank), first=own.first, collate=collate
        )
        return iter(loader)


def spec_of_config(config: Config, world: World, chosen: tuple[str, str] | None = None) -> TrainSpec:
    """The training that `config` describes, with a number as its local batch size. All ranks together.

    `chosen` has the strategy and its reason, by default those of `resolve_strategy`. Raises `ConfigError`,
    also if the data differs between ranks.
    """
    strategy, reason = chosen or resolve_strategy(config, world)
    config = config.with_values("parallel", strategy=strategy)
    mesh = build_strategy(strategy, config.parallel).mesh(world)
    source = build_source(config.data)
    record = source.record
    # Nodes with different versions of Python have different default corpora, and one may hold an old copy of
    # the files. A packed folder states the first hash.
    hashes = (record.sha256, record.fingerprint, source.files_sha256)
    refuse_unequal({"data": (record.name, record.version, record.bytes, *hashes)}, world)
    train = config.train
    assert train.local_batch_size != "auto", "resolved before the data is built"
    plan = plan_batch(train.local_batch_size, train.global_batch_size, mesh.data_size, train.accumulation)
    steps = train.steps
    if steps is None:
        assert train.epochs is not None
        steps = max(1, math.ceil(train.epochs * record.train_samples / plan.global_))
    return TrainSpec(
        config,
        make_model=lambda: build_model(config.model, source),
        make_optimizer=lambda parameters, model: build_optimizer(parameters, config.optim, model),
        objective=Task.of(source, config.memory.loss_in_model),
        mesh=mesh,
        plan=plan,
        steps=steps,
        source=source,
        strategy_reason=reason,
    )


def spec_of_script(
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    objective: Objective,
    config: Config,
    plan: BatchPlan,
    steps: int,
    world: World,
) -> TrainSpec:
    """The training of a script's own parts. The memory that its model needs is not estimated."""
    strategy, reason = choose_strategy(config.parallel.strategy, world.size)
    config = config.with_values("parallel", strategy=strategy)
    return TrainSpec(
        config,
        make_model=lambda: model,
        make_optimizer=make_optimizer,
        objective=objective,
        mesh=build_strategy(strategy, config.parallel).mesh(world),
        plan=plan,
        steps=steps,
        source=None,
        strategy_reason=dp_reason(world) if strategy == "dp" else reason,
    )


def refuse_unequal(values: Mapping[str, object], world: World) -> None:
    """Raise `ConfigError` on all ranks if a value of any rank differs from that of rank 0."""
    first, *others = world.all_gather_object(values)
    for rank, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise ConfigError(
                    f"{name} differs between ranks: rank 0 has {value}, rank {rank} has {other[name]}"
                )


def uncounted(model: nn.Module) -> ModelCost:
    """The cost of a model of the user: its parameters alone."""
    parameters = sum(p.numel() for p in model.parameters())
    return ModelCost(parameters, peak=Peak(reason="no peak was looked up"))


def communication_of(strategy: Strategy, parallel_model: nn.Module) -> Communication:
    """How the communication of a strategy is measured, with the model that it made parallel."""
    compares = strategy.compares_collectives
    return Communication(
        strategy.comm_method,
        strategy.comm_reason,
        profiles_collectives=strategy.comm_method is not None and compares,
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
        "comm_method": communication.method,
        **fields,
    }
    return RunFacts(
        metrics,
        communication,
        tokens_per_sample=source.tokens_per_sample if source else None,
        samples_are_images=source is not None and source.samples == "images",
        peak_reason=cost.peak.reason,
    )
