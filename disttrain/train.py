"""The story of a training run, top to bottom: set up, loop, tear down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from disttrain.builders import build_model, build_source
from disttrain.checkpoint import content, resume
from disttrain.checkpoint.content import ResumeState
from disttrain.checkpoint.manifest import build_manifest
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.config.auto_strategy import choose_strategy
from disttrain.config.batch_plan import BatchPlan, plan_batch
from disttrain.config.sections import Config, model_waits
from disttrain.data.loader import make_loader
from disttrain.data.sampler import GlobalOrder, RankBatches
from disttrain.data.source import Source
from disttrain.emulation.device import each_after, make_device
from disttrain.emulation.model import Emulated
from disttrain.errors import ConfigError
from disttrain.flops.counting import METHOD, flops_per_sample
from disttrain.flops.mfu import peak_of
from disttrain.hooks.evaluation import Evaluation
from disttrain.hooks.stop_agreement import Boundary, best_loss
from disttrain.optim.optimizer import make_optimizer
from disttrain.parallel.strategy import load_strategy
from disttrain.records.causes import StopCause
from disttrain.records.json_files import write_json
from disttrain.records.layers import Layers
from disttrain.records.metrics import Metrics
from disttrain.runtime import log
from disttrain.runtime.device import device_name, machine_id, nccl_version, usable_cpus
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.seeding import seed_all
from disttrain.runtime.stop_signals import StopRequests, StopSignals
from disttrain.task import Task
from disttrain.telemetry.layer_times import layer_times
from disttrain.telemetry.null_reasons import NOT_EMULATED
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.run_metadata import RunMetadata
from disttrain.trainer import Batch, Trainer

LATE_AT_THE_END = "the ranks compare it when the run ends"


def train(config: Config, output: RunOutput, world: World, signals: StopSignals | None = None) -> Metrics:
    """Train as `config` says on this rank of `world`, leaving the records in `output`.

    Goes on from the newest checkpoint, if there is one, and stops early where the ranks agree to.
    Raises `ConfigError` for what cannot be done, before the first step.
    """
    session = prepare(config, output, world, signals or StopSignals())
    try:
        stop_cause = run_loop(session, config)
    except BaseException:
        session.telemetry.abort()
        raise
    return finish(session, config, world, stop_cause)


@dataclass(frozen=True)
class Session:
    """Everything that stands ready when the first step begins."""

    trainer: Trainer
    telemetry: RunTelemetry
    batches: Iterator[Batch]
    steps: int
    evaluate: Evaluation | None
    boundary: Boundary
    saver: CheckpointSaver
    start_step: int
    """Steps done before; the first one here is the next."""
    example: Callable[[], Batch]
    """A micro-batch that training need not have."""


def run_loop(session: Session, config: Config) -> StopCause | None:
    """Train to the end (None), or until the ranks agree to stop: why."""
    trainer, telemetry, boundary = session.trainer, session.telemetry, session.boundary
    telemetry.start()
    if session.start_step < session.steps and (cause := boundary.meet(session.start_step)):
        return cause
    for step in range(session.start_step + 1, session.steps + 1):
        loss = take(step, session)
        telemetry.step_done(step, loss, trainer.lr)
        if session.evaluate and evaluation_is_due(step, session.steps, config.train.eval_every):
            with telemetry.outside_steps():
                point = session.evaluate(trainer.unwrapped_model, step)
                telemetry.evaluated(point)
                boundary.validated(point)
        if step >= boundary.next_step and step < session.steps and (cause := boundary.meet(step)):
            return cause
    boundary.finish(session.steps)
    return None


def take(step: int, session: Session) -> Tensor:
    """Run optimizer step `step`, looking at what it is to be looked at for; its mean local loss."""
    trainer, telemetry = session.trainer, session.telemetry
    if step in telemetry.profiled.steps:
        with telemetry.profiled.take(step, trainer):
            return trainer.step(step, session.batches)
    return trainer.step(step, session.batches)


def finish(session: Session, config: Config, world: World, stop_cause: StopCause | None) -> Metrics:
    """Leave the records of a run that came to its end or stopped. All ranks call this together."""
    if config.telemetry.layer_passes and stop_cause is None:
        record_layers(session, config, world)
    session.telemetry.checkpointed(session.saver.committed_step, session.saver.failed)
    if isinstance(model := session.trainer.unwrapped_model, Emulated):
        note_lateness(model, session.telemetry, world)
    metrics = session.telemetry.finish(stop_cause)
    log.info(stop_cause or "finished", step=metrics.steps, samples_per_s=metrics.samples_per_s or 0.0)
    return metrics


def record_layers(session: Session, config: Config, world: World) -> None:
    """Time every layer, on all ranks as in training, and write down rank 0's."""
    telemetry = session.telemetry
    layers = layer_times(session.trainer, session.example(), config.telemetry.layer_passes)
    if world.rank != 0 or telemetry.attempt.superseded_by() is not None:
        return
    found = Layers(
        attempt=telemetry.attempt.number,
        device=telemetry.facts["device"],
        emulated=config.emulated,
        passes=config.telemetry.layer_passes,
        samples=telemetry.facts["local_batch_size"],
        dtype_bytes=next(session.trainer.unwrapped_model.parameters()).element_size(),
        layers=layers,
    )
    write_json(telemetry.attempt.layers, found.model_dump(mode="json"))


def prepare(config: Config, output: RunOutput, world: World, signals: StopSignals) -> Session:
    """Build what a run needs. All ranks call this together."""
    # What is trained, on what, in what batches
    source = build_source(config.data)
    refuse_unequal_data(source, world)
    plan = plan_batch(config.train.local_batch_size, config.train.global_batch_size, world.size)
    steps = count_steps(config, source, plan)
    seed_all(config.train.seed)  # the same weights on every rank
    model = build_model(config.model, source).to(world.device)
    parameters = sum(p.numel() for p in model.parameters())
    flops = flops_per_sample(model, source.train, world.device)
    peak = peak_of(device_name(world.device), model, flops, world.device)
    seed_all(config.train.seed + 1 + world.rank)  # other dropout on every rank

    # How the ranks work together
    strategy_name, reason = choose_strategy(config.parallel.strategy, world.size)
    strategy = load_strategy(strategy_name)
    optimizer = make_optimizer(model, config.optim)
    model = strategy.wrap(model, config.parallel, world)

    # What there is to go on from
    described = build_manifest(config, source.record, plan, output.attempt, world)
    origin = resume.find_resume_source(config.checkpoint, output.run, output.attempt, described, steps, world)

    # What is measured
    facts = {
        **output.identity(),
        **describe_machine(world, config),
        "strategy": strategy_name,
        "strategy_reason": reason,
        "comm_method": strategy.COMM_METHOD,
        "model": config.model.kind,
        "parameters": parameters,
        "model_flops_per_sample": sum(flops.values()) or None,
        "flops_method": METHOD if flops else None,
        "compute_dtypes": peak.dtypes,
        "peak_flops": peak.flops_per_s,
        "peak_source": peak.source,
        "dataset": source.record,
        "steps_total": steps,
        "local_batch_size": plan.local,
        "accumulation": plan.accumulation,
        "global_batch_size": plan.global_,
        "resumed_step": origin.step if origin else None,
    }
    background = RunMetadata(
        tokens_per_sample=source.tokens_per_sample,
        samples_are_images=source.images,
        peak_reason=peak.reason,
        samples_comm=strategy.COMM_METHOD is not None,
        late_reason=LATE_AT_THE_END if isinstance(strategy.unwrap(model), Emulated) else NOT_EMULATED,
    )
    telemetry = RunTelemetry(output.run, output.attempt, world, config, facts, background)
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
    samples = source.record.train_samples

    def example() -> Batch:
        return default_collate([source.train[i % samples] for i in range(plan.local)])

    if strategy.PRIMES_BUCKETS:
        trainer.prime_buckets(example())
    start = content.restore(origin, trainer.unwrapped_model, optimizer, world) if origin else ResumeState()
    if origin and start.step:
        telemetry.resume(start.step, start.history, start.own, same_run=origin.same_run)
    mine = RankBatches(GlobalOrder(samples, config.train.seed), plan, world.rank, steps, start.step)
    seed = (config.train.seed, world.rank)
    loader = make_loader(source.train, mine, config.data, world.device, seed=seed, first=mine.first)
    batches: Iterator[Batch] = iter(loader)
    bare = trainer.unwrapped_model
    if isinstance(bare, Emulated) and bare.table.input_s:
        late_s = bare.table.input_s * bare.table.share(plan.local)
        batches = each_after(late_s, batches, make_device("wait", world.device))
    evaluate = None
    if source.valid is not None:
        evaluate = Evaluation(source.valid, task, world, plan.local, config.train.eval_samples)

    # What may end it early, and what is left for the next start
    folder = resume.checkpoint_folder(config.checkpoint, output.run)
    capture = partial(content.capture, trainer.unwrapped_model, optimizer, telemetry, world)
    saver = CheckpointSaver(
        folder, config.checkpoint, output.attempt, telemetry.timed_world, capture, described, start.step
    )
    looks = world.local_rank == 0
    requests = StopRequests(output.run.stop, output.attempt.stop, signals, config.job.stop_lead_s, looks)
    best = best_loss(telemetry.eval_history, world)
    boundary = Boundary(config, telemetry.timed_world, output.attempt, requests, saver, telemetry.clock, best)
    content.set_random(start, config.train.seed, world)  # last: making an iterator draws from it
    return Session(trainer, telemetry, batches, steps, evaluate, boundary, saver, start.step, example)


def refuse_unequal_data(source: Source, world: World) -> None:
    """Raise `ConfigError` on all ranks if any has other data: nodes with different Python versions would
    train on different default corpora, and nothing else would notice."""
    found = [
        (record.name, record.version, record.sha256) for record in world.all_gather_object(source.record)
    ]
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


def note_lateness(model: Emulated, telemetry: RunTelemetry, world: World) -> None:
    """Take down how well an emulated model kept its time, or why that is not known. All ranks call this
    together."""
    if model.timing_error_s is None:
        telemetry.background.late_reason = model.late_reason
    else:
        telemetry.facts["emulation_late_s"] = world.all_reduce_max([model.timing_error_s])[0]


def describe_machine(world: World, config: Config) -> dict[str, Any]:
    """The fields of `Metrics` about where this runs. All ranks call this together."""
    # a rank that waits leaves its processor to others
    own = 0 if model_waits(config) else config.resources.threads_per_rank
    threads = own + config.data.workers
    machines = world.all_gather_object((machine_id(), threads))
    busy = sum(count for machine, count in machines if machine == machine_id())
    cpus = usable_cpus()
    crowded = config.resources.device == "shared" and len(machines) > 1 and not model_waits(config)
    return {
        "emulated": config.emulated,
        "nodes": world.nodes,
        "ranks_per_node": world.local_size,
        "world_size": world.size,
        "device": device_name(world.device),
        "backend": world.backend,
        "torch": torch.__version__,
        "nccl": nccl_version(),
        "cpu_count": cpus,
        "oversubscribed": busy > cpus if world.device.type == "cpu" else crowded,
    }
