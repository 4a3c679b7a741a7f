"""A training run of a config from top to bottom: build it, loop over the steps, close it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from disttrain.config.config_tree import Config
from disttrain.data.source import Batch
from disttrain.engine.trainer import Trainer
from disttrain.records.heartbeat import FOLDER_VARIABLE, stop_request_path
from disttrain.records.metrics import Metrics
from disttrain.runtime.kernels import attention_kernel
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import StopRequests, StopSignals


def train(config: Config, output: RunOutput, world: World, signals: StopSignals | None = None) -> Metrics:
    """Train by `config` on this rank of `world`, and write the records to `output`.

    Resumes from the newest checkpoint if there is one, and stops early if the ranks agree on it.
    Raises `ConfigError` before the first step if the config cannot be run.
    """
    with attention_kernel(config.train.attention):
        with output.recorded_if_it_fails():
            trainer = begin(config, output, world, signals)
        with trainer:
            run(trainer, batches_of(trainer))
        return trainer.metrics()


def begin(
    config: Config, output: RunOutput, world: World, signals: StopSignals | None = None
) -> Trainer[Batch]:
    """The trainer of `config`, which stops on a signal, a file of the user or the agent, and in time."""
    trainer = Trainer.of_config(config, output, world)
    node_folder = os.environ.get(FOLDER_VARIABLE)
    agent_file = stop_request_path(Path(node_folder)) if node_folder else None
    # one rank of the job looks for the file of the user: each look is a call to the shared file system
    stop_file = output.run.stop if world.rank == 0 else None
    job = config.job
    trainer.stop_on(
        StopRequests(stop_file, agent_file, signals or StopSignals(), job.stop_lead_s, job.stop_check_s)
    )
    return trainer


def batches_of(trainer: Trainer[Batch]) -> Iterator[Batch]:
    """The training batches of the config's data."""
    source = trainer.stepper.spec.source
    assert source is not None
    return trainer.batches(source.train, workers=trainer.config.data.workers)


def run(trainer: Trainer[Batch], batches: Iterator[Batch]) -> None:
    """Train to the last step, or until the ranks agree to stop; validate after every `train.eval_every` steps
    and after the last one."""
    source, train = trainer.stepper.spec.source, trainer.config.train
    assert source is not None
    while trainer.steps_done < trainer.steps and trainer.step(batches):
        step = trainer.steps_done
        is_due = step == trainer.steps or (train.eval_every > 0 and step % train.eval_every == 0)
        if is_due and source.valid is not None:
            trainer.validate(source.valid, samples=train.eval_samples)
