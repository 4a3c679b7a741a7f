"""A training run from top to bottom: build it, loop over the steps, close it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from disttrain.checkpoint.folder import checkpoint_folder
from disttrain.checkpoint.manifest import build_manifest
from disttrain.checkpoint.resume import ResumeSource, find_resume_source
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.state import RandomState, Stateful, TrainState
from disttrain.config.config_tree import Config
from disttrain.data.source import Batch
from disttrain.engine.auto_batch import resolve_batch_size
from disttrain.engine.evaluation import EvaluationHook
from disttrain.engine.garbage_collection import CollectGarbage, without_automatic_collection
from disttrain.engine.hook import Hook
from disttrain.engine.layer_times import write_layer_times
from disttrain.engine.non_finite import NonFinitePolicy
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import Stepper, build_stepper
from disttrain.engine.stop_agreement import StopAgreement, best_loss
from disttrain.engine.strategy_choice import resolve_strategy
from disttrain.engine.telemetry_hook import TelemetryHook
from disttrain.models.hooks import hooks_of
from disttrain.parallel.base import build_strategy
from disttrain.records.batch_fit import BatchFit
from disttrain.records.exit_causes import StopCause
from disttrain.records.heartbeat import FOLDER_VARIABLE, stop_request_path
from disttrain.records.metrics import Metrics
from disttrain.runtime import heartbeat, log
from disttrain.runtime.attention_kernel import attention_kernel
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_failure import record_failure
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import StopRequests, StopSignals
from disttrain.telemetry.machine_facts import describe_machine
from disttrain.telemetry.model_report import add_model_report, reason_at_start
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.run_metadata import RunMetadata, communication_metadata
from disttrain.telemetry.step_clock import COMMUNICATION
from disttrain.telemetry.step_result import StepResult
from disttrain.telemetry.telemetry_state import TelemetryState


def train(config: Config, output: RunOutput, world: World, signals: StopSignals | None = None) -> Metrics:
    """Train by `config` on this rank of `world`, and write the records to `output`.

    Resumes from the newest checkpoint if there is one, and stops early if the ranks agree on it.
    Raises `ConfigError` before the first step if the config cannot be run.
    """
    with attention_kernel(config.train.attention):
        run = prepare(config, output, world, signals or StopSignals())
        try:
            with without_automatic_collection(config.train.gc_every > 0):
                stop_cause = run_loop(run)
        except BaseException as error:
            record_failure(error, world.rank, output.attempt)  # before anything that may block
            run.telemetry.abort()
            raise
        return finish(run, config, world, stop_cause)


@dataclass(frozen=True)
class Run:
    """Everything that is built when the first step begins."""

    stepper: Stepper
    telemetry: RunTelemetry
    batches: Iterator[Batch]
    saver: CheckpointSaver
    stopping: StopAgreement
    hooks: list[Hook]
    start_step: int
    """Steps done before; the first step of the loop is the next one."""


def run_loop(run: Run) -> StopCause | None:
    """Train to the last step (None), or until a hook ends the run (its cause)."""
    heartbeat.enter("step")
    for hook in run.hooks:
        if cause := hook.on_start(run.start_step):
            return cause
    for step in range(run.start_step + 1, run.stepper.spec.steps + 1):
        result = take_step(step, run)
        heartbeat.step_done(step)
        for hook in run.hooks:
            if cause := hook.on_step(result):
                return cause
    for hook in run.hooks:
        hook.on_end()
    return None


def take_step(step: int, run: Run) -> StepResult:
    """Run optimizer step `step`, under the profiler if the step is to be profiled."""
    profiled = run.telemetry.profiled
    if step not in profiled.steps:
        return run.stepper.step(step, run.batches)
    with profiled.take(step, run.stepper):
        return run.stepper.step(step, run.batches)


def finish(run: Run, config: Config, world: World, stop_cause: StopCause | None) -> Metrics:
    """Write the records of a run that completed or stopped. All ranks together."""
    heartbeat.enter("finish")
    telemetry, model = run.telemetry, run.stepper.unwrapped_model
    if config.telemetry.layer_passes and stop_cause is None:
        write_layer_times(run.stepper, run.stepper.spec.example(), telemetry)
    telemetry.checkpointed(run.saver.committed_step, run.saver.failed)
    add_model_report(model, telemetry, world)
    metrics = telemetry.finish(stop_cause)
    log.info(stop_cause or "finished", step=metrics.steps, samples_per_s=metrics.samples_per_s or 0.0)
    return metrics


def prepare(config: Config, output: RunOutput, world: World, signals: StopSignals) -> Run:
    """Build a run. All ranks together."""
    chosen = resolve_strategy(config, world)  # first: the search of a batch size trains with it
    resolved, batch_fit = resolve_batch_size(config, chosen[0], output, world)
    spec = spec_of_config(resolved, world, chosen)
    assert spec.source is not None
    strategy = build_strategy(spec.config.parallel.strategy, spec.config.parallel)
    stepper = build_stepper(spec, strategy, world)
    model = stepper.unwrapped_model
    manifest = build_manifest(config, spec.source.record, spec.plan, output.attempt, world)
    manifest = manifest.model_copy(update={"batch_fit": batch_fit})
    origin = find_resume_source(config.checkpoint, output.run, output.attempt, manifest, spec.steps, world)
    telemetry = build_telemetry(config, output, stepper, origin, batch_fit)
    stepper.clock = telemetry.clock
    heartbeat.communicates_while(lambda: telemetry.clock.phase in COMMUNICATION)
    stepper.prime(spec.example())

    random = RandomState(world.device)
    parts: list[Stateful] = [TelemetryState(telemetry, origin), stepper.precision, strategy, random]
    holders = spec.mesh.stage_ranks if spec.mesh.pipeline > 1 else None
    state = TrainState(model, stepper.optimizer, parts, world, holders)
    start_step = state.restore(origin) if origin else 0
    batches = spec.batches(spec.source.train, start_step, world.device)
    batches = hooks_of(model).wrap_batches(batches, spec.plan.local, world.device)

    folder = checkpoint_folder(config.checkpoint, output.run)
    saver = CheckpointSaver(
        folder, config.checkpoint, output.attempt, telemetry.timed_world, state.capture, manifest, start_step
    )
    agree = strategy.replicas_agree
    stopping = build_stopping(config, output, world, signals, saver, telemetry, spec.steps, agree)
    hooks: list[Hook] = [TelemetryHook(telemetry)]
    if spec.source.valid is not None:
        listeners = [telemetry.evaluated, stopping.validated]
        hooks.append(EvaluationHook(spec.source.valid, stepper, telemetry, listeners))
    if config.train.gc_every:
        hooks.append(CollectGarbage(config.train.gc_every))
    hooks.append(stopping)
    random.restart(start_step, config.train.seed, world)  # last: building an iterator draws random numbers
    return Run(stepper, telemetry, batches, saver, stopping, hooks, start_step)


def build_telemetry(
    config: Config,
    output: RunOutput,
    stepper: Stepper,
    origin: ResumeSource | None,
    batch_fit: BatchFit | None,
) -> RunTelemetry:
    """The telemetry, and the first line of the log. All ranks together."""
    spec, cost, plan, world = stepper.spec, stepper.cost, stepper.plan, stepper.world
    assert spec.source is not None
    metrics_fields = {
        **output.identity(),
        **describe_machine(world, config),
        "strategy": spec.config.parallel.strategy,
        "strategy_reason": spec.strategy_reason,
        "comm_method": stepper.strategy.comm_method,
        **stepper.precision_fields,
        "model": config.model.kind,
        **cost.metrics_fields(),
        "dataset": spec.source.record,
        "steps_total": spec.steps,
        "local_batch_size": plan.local,
        "accumulation": plan.accumulation,
        "global_batch_size": plan.global_,
        "batch_fit": batch_fit,
        "resumed_step": origin.step if origin else None,
    }
    metadata = RunMetadata(
        tokens_per_sample=spec.source.tokens_per_sample,
        samples_are_images=spec.source.images,
        peak_reason=cost.peak.reason,
        emulation_late_reason=reason_at_start(stepper.model),
        **communication_metadata(stepper.strategy, stepper.model),
    )
    log.info(
        "start",
        model=config.model.kind,
        parameters=cost.parameters,
        steps=spec.steps,
        strategy=spec.config.parallel.strategy,
        reason=spec.strategy_reason,
        precision=stepper.precision_fields["precision"],
        precision_reason=stepper.precision_fields["precision_reason"],
        device=str(world.device),
        world_size=world.size,
        batch=f"{plan.local} x {plan.accumulation} x {plan.world} = {plan.global_}",
    )
    return RunTelemetry(output, world, config, metrics_fields, metadata)


def build_stopping(
    config: Config,
    output: RunOutput,
    world: World,
    signals: StopSignals,
    saver: CheckpointSaver,
    telemetry: RunTelemetry,
    steps: int,
    replicas_agree: Callable[[int], bool],
) -> StopAgreement:
    """The hook that stops and saves. All ranks together."""
    node_folder = os.environ.get(FOLDER_VARIABLE)
    agent_file = stop_request_path(Path(node_folder)) if node_folder else None
    # one rank of the job looks for the file of the user: each look is a call to the shared file system
    stop_file = output.run.stop if world.rank == 0 else None
    requests = StopRequests(stop_file, agent_file, signals, config.job.stop_lead_s, config.job.stop_check_s)
    best = best_loss(telemetry.eval_history, world)
    return StopAgreement(
        config, telemetry.timed_world, telemetry.attempt_watch, requests, saver, telemetry.clock, best, steps,
        NonFinitePolicy(config.precision, telemetry.skipped_steps), replicas_agree, telemetry.pace.set,
    )  # fmt: skip
