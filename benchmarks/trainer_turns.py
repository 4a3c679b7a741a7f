"""One launch of `trainer.py`: the loops of all frameworks take turns. Each rank runs this module.

Rank 0 prints the seconds of each turn as a JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.own_time import own_time
from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.data.source import Source
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.train import batches_of, begin
from disttrain.models.hooks import blocks_of
from disttrain.optim.optimizer import build_optimizer
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, ensure_group, open_world
from disttrain.runtime.run_output import RunOutput

Turn = Callable[[int], None]
"""Trains a number of steps."""
WARM_UP = 10
SAMPLES = 512
STEPS_OF_TURN = 5
"""Odd: with steps of an eighth of a second, what the trainer writes each second would always be due at the
end of a turn of four steps, where the turn waits for it."""


def config_of(strategy: str, device: str, steps: int, tiny: bool) -> Config:
    """A GPT whose step takes some 100 ms on a CPU, and 124 M parameters on a GPU."""
    small = device == "cpu"
    model = {"layers": 4, "width": 256, "heads": 4} if small else {"layers": 12, "width": 768, "heads": 12}
    data = {"vocab": 256, "seq_len": 64} if small else {"vocab": 50_304, "seq_len": 1024}
    if tiny:
        model, data = {"layers": 1, "width": 16, "heads": 2}, {"vocab": 32, "seq_len": 8}
    info = rank_info()
    return check(Draft({
        "model": {"kind": "gpt", **model},
        "data": {"kind": "synthetic", "task": "language", "samples": SAMPLES, "valid_samples": 0, **data},
        "train": {"steps": steps, "local_batch_size": 8},
        "precision": {"dtype": "fp32" if small else "tf32", "on_non_finite": "ignore"},
        "parallel": {"strategy": strategy},
        "resources": {"nodes": info.nodes, "gpus_per_node": info.local_size, "device": device},
        "telemetry": {"profiled_steps": 0, "sinks": []},
    }))  # fmt: skip


class Given:
    """Inputs of every loop: the same initial weights, batches, optimizer and wrapping."""

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        self.source: Source = build_source(config.data)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return build_model(self.config.model, self.source).to(self.world.device)

    @property
    def sharded_modules(self) -> int:
        """Modules that `fully_shard` is applied to: each block, and the model."""
        if self.config.parallel.strategy != "fsdp":
            return 0
        return len(blocks_of(build_model(self.config.model, self.source))) + 1

    def wrapped(self, model: nn.Module) -> nn.Module:
        strategy = self.config.parallel.strategy
        if strategy == "ddp":
            return DistributedDataParallel(model, gradient_as_bucket_view=True)
        if strategy == "fsdp":
            shard(model)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model.parameters(), self.config.optim)

    def batches(self) -> Iterator[Any]:
        size = int(self.config.train.local_batch_size or 1)
        order = _order(size, self.world.rank, self.world.size)
        pinned = self.world.device.type == "cuda"
        return iter(DataLoader(self.source.train, batch_sampler=order, pin_memory=pinned))

    def loop(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[Tensor], Any]
    ) -> Turn:
        batches, device = self.batches(), self.world.device
        sharded = sum(isinstance(module, FSDPModule) for module in model.modules())
        if sharded != self.sharded_modules:
            raise RuntimeError(f"{sharded} modules are sharded, {self.sharded_modules} with the trainer")

        def run(steps: int) -> None:
            for _ in range(steps):
                inputs, targets = (value.to(device, non_blocking=True) for value in next(batches))
                backward(F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()))
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        return run


def _order(batch: int, rank: int, world: int) -> Iterator[list[int]]:
    """Endless seeded permutations, distributed over the ranks batch by batch."""
    for epoch in itertools.count():
        order = np.random.default_rng([0, epoch]).permutation(SAMPLES).reshape(-1, world, batch)
        yield from order[:, rank].tolist()


def shard(model: nn.Module) -> None:
    """`fully_shard` of each block and of the rest."""
    for block in blocks_of(model).values():
        fully_shard(block)
    fully_shard(model)


def bare(given: Given) -> Turn:
    model = given.wrapped(given.model())
    return given.loop(model, given.optimizer(model), Tensor.backward)


def fabric(given: Given) -> Turn:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

    def parallelize(model: nn.Module, _mesh: Any) -> nn.Module:
        shard(model)
        return model

    size, name = given.world.size, given.config.parallel.strategy
    strategies: dict[str, Any] = {
        "single": "auto",
        "ddp": DDPStrategy(gradient_as_bucket_view=True),
        "fsdp": ModelParallelStrategy(parallelize, data_parallel_size=size, tensor_parallel_size=1),
    }
    made = Fabric(accelerator=given.world.device.type, devices=size, strategy=strategies[name])
    if size > 1:
        made.launch()
    model = made.setup_module(given.model())
    optimizer: Any = made.setup_optimizers(given.optimizer(model))
    return given.loop(model, optimizer, made.backward)


def accelerate(given: Given) -> Turn:
    from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

    options: dict[str, Any] = {}
    if given.config.parallel.strategy == "fsdp":
        options["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
        )
    if given.config.parallel.strategy == "ddp":
        options["kwargs_handlers"] = [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    made = Accelerator(cpu=given.world.device.type == "cpu", **options)
    model = given.model()
    wrapped, optimizer = made.prepare(model, given.optimizer(model))
    return given.loop(wrapped, optimizer, made.backward)


def disttrain(given: Given, folder: Path) -> Turn:
    trainer = begin(given.config, RunOutput.of_job(folder, 0), given.world)
    batches = batches_of(trainer)

    def turn(steps: int) -> None:
        if trainer.steps_done:
            trainer.recorder.clock.start()  # the turns of the other loops belong to no step
        for _ in range(steps):
            trainer.step(batches)
        trainer.recorder.writer.wait()  # else they would run beside the next turn

    return turn


def measure(arguments: argparse.Namespace, world: World, config: Config, folder: Path) -> dict[str, Any]:
    """Seconds of each turn of each loop, in the order of the rounds."""
    given = Given(config, world)
    makers: dict[str, Callable[[], Turn]] = {
        "disttrain": lambda: disttrain(given, folder),
        "bare": lambda: bare(given),
        "fabric": lambda: fabric(given),
        "accelerate": lambda: accelerate(given),
    }
    names = ["disttrain", *arguments.peers]
    first = arguments.launch % len(names)  # the order of building changes addresses, and with them speed
    turns = {name: makers[name]() for name in names[first:] + names[:first]}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(arguments.launch)
    with own_time() as clock:

        def timed(name: str, steps: int) -> float:
            _synchronize(world)
            began = time.perf_counter()
            turns[name](steps)
            _synchronize(world)
            taken = time.perf_counter() - began
            clock.others_s += taken if name != "disttrain" else 0.0
            return taken

        for name in turns:
            timed(name, WARM_UP)
        for _ in range(arguments.rounds):
            order.shuffle(names)
            for name in names:
                seconds[name].append(timed(name, STEPS_OF_TURN))
    batch = config.train.local_batch_size or 1
    return {"seconds": seconds, "samples_per_round": batch * world.size * STEPS_OF_TURN}


def _synchronize(world: World) -> None:
    """All ranks have finished their work."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    if world.size > 1:
        dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=("single", "ddp", "fsdp"))
    parser.add_argument("--peers", nargs="+", default=["bare"])
    parser.add_argument("--launch", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    steps = WARM_UP + arguments.rounds * STEPS_OF_TURN
    config = config_of(arguments.strategy, arguments.device, steps, arguments.tiny)
    with tempfile.TemporaryDirectory() as folder, open_world(config) as world:
        if config.parallel.strategy == "fsdp":
            ensure_group(world)
        found = measure(arguments, world, config, Path(folder))
        if world.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
