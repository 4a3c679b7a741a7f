"""The story of a training run, top to bottom: set up, loop, tear down."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from disttrain import log
from disttrain.batch import BatchPlan, plan_batch
from disttrain.config import Config
from disttrain.data.loader import make_loader
from disttrain.data.sampler import GlobalOrder, RankBatches
from disttrain.data.source import Source
from disttrain.errors import ConfigError
from disttrain.evaluate import Evaluation
from disttrain.flops import METHOD, model_flops_per_sample
from disttrain.optim import make_optimizer
from disttrain.output import Output
from disttrain.parallel.choice import choose
from disttrain.parallel.strategy import load_strategy
from disttrain.records import Metrics
from disttrain.registry import build_model, build_source
from disttrain.task import Task
from disttrain.telemetry.run import RunTelemetry
from disttrain.trainer import Batch, Trainer
from disttrain.world import World, device_name, machine_id, nccl_version, usable_cpus


def train(config: Config, output: Output, world: World) -> Metrics:
    """Train as `config` says on this rank of `world`, leaving the records in `output`.

    Raises `ConfigError` for what cannot be done, before the first step.
    """
    session = prepare(config, output, world)
    try:
        run_loop(session, config)
    except BaseException:
        session.telemetry.abort()
        raise
    metrics = session.telemetry.finish()
    log.info("finished", step=session.steps, samples_per_s=metrics.samples_per_s or 0.0)
    return metrics


@dataclass(frozen=True)
class Session:
    """Everything that stands ready when the first step begins."""

    trainer: Trainer
    telemetry: RunTelemetry
    batches: Iterator[Batch]
    steps: int
    evaluate: Evaluation | None


def run_loop(session: Session, config: Config) -> None:
    trainer, telemetry = session.trainer, session.telemetry
    telemetry.start()
    for step in range(1, session.steps + 1):
        loss = trainer.step(step, session.batches)
        telemetry.step_done(step, loss, trainer.lr)
        if session.evaluate and evaluation_is_due(step, session.steps, config.train.eval_every):
            with telemetry.outside_steps():
                telemetry.evaluated(session.evaluate(trainer.bare_model, step))


def prepare(config: Config, output: Output, world: World) -> Session:
    """Build what a run needs. All ranks call this together."""
    # What is trained, on what, in what batches
    source = build_source(config.data)
    refuse_unequal_data(source, world)
    plan = plan_batch(config.train.local_batch_size, config.train.global_batch_size, world.size)
    steps = count_steps(config, source, plan)
    torch.manual_seed(config.train.seed)  # the same weights on every rank
    model = build_model(config.model, source).to(world.device)
    parameters = sum(p.numel() for p in model.parameters())
    flops = model_flops_per_sample(model, source.train, world.device)
    torch.manual_seed(config.train.seed + 1 + world.rank)  # other dropout on every rank

    # How the ranks work together
    strategy_name, reason = choose(config.parallel.strategy, world.size)
    strategy = load_strategy(strategy_name)
    optimizer = make_optimizer(model, config.optim)
    model = strategy.wrap(model, config.parallel, world)

    # What is measured
    facts = {
        **output.identity(),
        **describe_machine(world, config),
        "strategy": strategy_name,
        "strategy_reason": reason,
        "comm_method": strategy.COMM_METHOD,
        "model": config.model.kind,
        "parameters": parameters,
        "model_flops_per_sample": flops,
        "flops_method": METHOD if flops else None,
        "dataset": source.record,
        "steps_total": steps,
        "local_batch_size": plan.local,
        "accumulation": plan.accumulation,
        "global_batch_size": plan.global_,
        "tokens_per_sample": source.tokens_per_sample,
    }
    telemetry = RunTelemetry(output.run, output.attempt, world, config, facts)
    log.info(
        "start",
        model=config.model.kind,
        parameters=parameters,
        steps=steps,
        strategy=strategy_name,
        reason=reason,
        device=str(world.device),
        world_size=world.size,
        batch=f"{plan.local} x {plan.accumulation} x {world.size} = {plan.global_}",
    )

    # What the loop takes
    task = Task.of(source)
    trainer = Trainer(model, task, optimizer, config.optim, strategy, plan, steps, telemetry.clock)
    order = GlobalOrder(source.record.train_samples, config.train.seed)
    mine = RankBatches(order, plan, world.rank, steps)
    batches = iter(make_loader(source.train, mine, config.data, world.device))
    evaluate = None
    if source.valid is not None:
        evaluate = Evaluation(source.valid, task, world, plan.local, config.train.eval_samples)
    return Session(trainer, telemetry, batches, steps, evaluate)


def refuse_unequal_data(source: Source, world: World) -> None:
    """Raise `ConfigError` on all ranks if any has other data: nodes with different Python versions would
    train on different default corpora, and nothing else would notice."""
    found = [(record.name, record.version, record.sha256) for record in world.gather(source.record)]
    for rank, other in enumerate(found):
        if other != found[0]:
            raise ConfigError(f"data differs between ranks: rank 0 has {found[0]}, rank {rank} has {other}")


def count_steps(config: Config, source: Source, plan: BatchPlan) -> int:
    """Optimizer steps of the whole run; epochs are rounded up to whole steps."""
    if config.train.steps is not None:
        return config.train.steps
    assert config.train.epochs is not None
    return max(1, math.ceil(config.train.epochs * source.record.train_samples / plan.global_))


def evaluation_is_due(step: int, steps: int, every: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)


def describe_machine(world: World, config: Config) -> dict[str, Any]:
    """The fields of `Metrics` about where this runs. All ranks call this together."""
    threads = config.resources.threads_per_rank + config.data.workers
    machines = world.gather((machine_id(), threads))
    busy = sum(count for machine, count in machines if machine == machine_id())
    cpus = usable_cpus()
    return {
        "nodes": world.nodes,
        "ranks_per_node": world.local_size,
        "world_size": world.size,
        "device": device_name(world.device),
        "backend": world.backend,
        "torch": torch.__version__,
        "nccl": nccl_version(),
        "cpu_count": cpus,
        "oversubscribed": world.device.type == "cpu" and busy > cpus,
    }
