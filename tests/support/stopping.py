"""Training that is stopped after a given step and looked at from within, for tests of resuming."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.engine.trainer import Trainer
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import SIGNALS, StopSignals
from disttrain.telemetry.steps import StepResult
from tests.support.small_models import FEATURES

MODEL = {"kind": "tests.support.small_models:Deep"}
DATA = {"kind": "tests.support.small_models:source", "samples": 40}


def config(nodes: int = 1, ranks: int = 1, **sections: dict[str, Any]) -> Config:
    """A run that looks for stop requests after every step; keys of its sections."""
    base: dict[str, dict[str, Any]] = {
        "model": MODEL,
        "data": DATA,
        "train": {"steps": 12, "local_batch_size": 4, "log_every": 5},
        "optim": {"schedule": "cosine", "warmup_steps": 3, "grad_clip": 1.0, "lr": 0.01},
        "parallel": {"ddp": {"bucket_mb": 0.002}},
        "resources": {"nodes": nodes, "gpus_per_node": ranks, "device": "cpu"},
        "telemetry": {"warmup_steps": 2, "sinks": []},
        "job": {"stop_check_s": 0},
    }
    names = {*base, *sections}
    return Config.model_validate({name: {**base.get(name, {}), **sections.get(name, {})} for name in names})


def alone() -> World:
    return World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


@dataclass(frozen=True)
class Seen:
    """What one rank saw of one attempt."""

    metrics: Metrics
    parameters: str
    """Hash of parameters, buffers and the optimizer's moments at the end."""
    inputs: list[bytes]
    """Of each micro-batch, in order."""
    buckets: int


def train_until(
    world: World, config: Config, folder: Path, attempt: int, stop_after: int | None, prime: bool = True
) -> Seen:
    """Train from where the run directory stands; a signal comes to one of the ranks in step `stop_after`."""
    output = RunOutput.of_job(folder, attempt)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    signals = StopSignals()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signals.install()
    try:
        with nullcontext() if prime else patch("disttrain.engine.step.Stepper.prime"):
            trainer = begin(config, output, world, signals)
            if stop_after is not None and world.rank == stop_after % world.size:
                number = SIGNALS[stop_after % len(SIGNALS)]
                after_step(trainer, stop_after, lambda: os.kill(os.getpid(), number))
            inputs: list[bytes] = []
            with trainer:
                run(trainer, recorded(batches_of(trainer), inputs))
        return Seen(trainer.metrics(), parameter_hash(trainer), inputs, bucket_count(trainer))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def after_step(trainer: Trainer[Any], step: int, act: Callable[[], Any]) -> None:
    """Have `act` run as the last thing in optimizer step `step`."""
    runner = trainer.stepper
    original = runner.step

    def stepped(number: int, batches: Any) -> StepResult:
        result = original(number, batches)
        if number == step:
            act()
        return result

    runner.step = stepped  # type: ignore[method-assign]


def recorded(batches: Iterator[Any], into: list[bytes]) -> Iterator[Any]:
    for inputs, targets in batches:
        into.append(inputs.numpy().tobytes())
        yield inputs, targets


def samples_of(ranks: list[Seen]) -> list[bytes]:
    """The inputs that were trained on, one by one."""
    size = 4 * FEATURES
    return [
        batch[at : at + size] for seen in ranks for batch in seen.inputs for at in range(0, len(batch), size)
    ]


def parameter_hash(trainer: Trainer[Any]) -> str:
    digest = hashlib.sha256()
    bare, optimizer = trainer.model, trainer.stepper.optimizer
    moments = [value for each in bare.parameters() for _, value in sorted(optimizer.state[each].items())]
    for value in [*bare.state_dict().values(), *moments]:
        value = value.full_tensor() if isinstance(value, DTensor) else value
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()


def bucket_count(trainer: Trainer[Any]) -> int:
    model = trainer.stepper.model
    if not isinstance(model, DistributedDataParallel):
        return 0
    return len(model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "").split(","))
