"""One launch of `trainer.py`: the sides of a case take turns. Each rank runs this module.

Rank 0 prints the seconds of each turn as a JSON object.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.data.source import Source
from disttrain.engine import agreement
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.step import collections_by_hand
from disttrain.engine.train import batches_of, begin
from disttrain.models.hooks import blocks_of
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.optim.optimizer import build_optimizer
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, ensure_group, open_world
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import live_progress, recorder
from disttrain.transforms import channels_last

STRATEGIES = ("single", "ddp", "fsdp")
CASES = (*STRATEGIES, "channels_last", "gc_every")
Turn = Callable[[int], None]
"""Trains a number of steps."""
WARM_UP = 10
SAMPLES = 512
STEPS_OF_TURN = {"100-ms": 5, "short": 500, "tiny": 5}
"""By size of the step. Odd: with steps of an eighth of a second, what the trainer writes each second would
always be due at the end of a turn of four steps, where the turn waits for it."""
SIZES = {
    "cpu": ({"layers": 4, "width": 256, "heads": 4}, {"vocab": 256, "seq_len": 64}),
    "cuda": ({"layers": 12, "width": 768, "heads": 12}, {"vocab": 50_304, "seq_len": 1024}),
    "short": ({"layers": 1, "width": 4, "heads": 1}, {"vocab": 4, "seq_len": 4}),
    "tiny": ({"layers": 1, "width": 16, "heads": 2}, {"vocab": 32, "seq_len": 8}),
}
"""Model and data: a step of some 100 ms on a CPU, 124 M parameters on a GPU, a step that consists of what
frameworks do themselves, on batches in memory, and one for a test."""


def config_of(strategy: str, device: str, steps: int, size: str) -> Config:
    """A GPT of this size on the ranks of this process's world."""
    model, data = SIZES[device if size == "100-ms" else size]
    info = rank_info()
    return check(Draft({
        "model": {"kind": "gpt", **model},
        "data": {"kind": "synthetic", "task": "language", "samples": SAMPLES, "valid_samples": 0, **data},
        "train": {"steps": steps, "local_batch_size": 8},
        "precision": {"dtype": "fp32" if device == "cpu" else "tf32", "on_non_finite": "ignore"},
        "parallel": {"strategy": strategy},
        "resources": {"nodes": info.nodes, "gpus_per_node": info.local_size, "device": device},
        "telemetry": {"profiled_steps": 0, "sinks": []},
    }))  # fmt: skip


class Given:
    """Inputs of every loop: the same initial weights, batches, optimizer and wrapping.

    `in_memory`: a few batches that are there before the first step, for the trainer, too.
    """

    def __init__(self, config: Config, world: World, in_memory: bool = False) -> None:
        self.config, self.world, self.in_memory = config, world, in_memory
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
        loaded = iter(DataLoader(self.source.train, batch_sampler=order, pin_memory=pinned))
        return itertools.cycle(list(itertools.islice(loaded, 16))) if self.in_memory else loaded

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
    batches = given.batches() if given.in_memory else batches_of(trainer)

    def turn(steps: int) -> None:
        if trainer.steps_done:
            trainer.recorder.clock.start()  # the turns of the other loops belong to no step
        for _ in range(steps):
            trainer.step(batches)
        trainer.recorder.writer.wait()  # else they would run beside the next turn

    return turn


def collecting_by_hand(turn: Turn) -> Turn:
    """A turn as with `train.gc_every`, with one collection at its end."""

    def collected(steps: int) -> None:
        with collections_by_hand():
            turn(steps)
            gc.collect()

    return collected


def resnet(given: Given, option: bool, tiny: bool) -> Turn:
    """A ResNet-18 on images of 64 x 64 and, on a GPU, in bf16 with images of 224 x 224."""
    device, on_gpu = given.world.device, given.world.device.type == "cuda"
    batch, side, width = (256, 224, 64) if on_gpu else (8, 64, 32)
    if tiny:  # with 4 channels, PyTorch 2.13 corrupts memory on a CPU without AVX-512
        batch, side, width = 2, 16, 8
    torch.manual_seed(0)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(10, (batch,), device=device)
    model: nn.Module = ResNet(BasicBlock, (2, 2, 2, 2), 3, side < 64, 10, width).to(device)
    model = channels_last.build(model) if option else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def turn(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return turn


def sides(case: str, peers: list[str], given: Given, folder: Path, first: int, tiny: bool) -> dict[str, Turn]:
    """What takes turns, built from number `first` on: the order changes addresses, and with them speed."""
    if case == "gc_every":
        turn = disttrain(given, folder)
        return {"off": turn, "on": collecting_by_hand(turn)}
    makers: dict[str, Callable[[], Turn]]
    if case == "channels_last":
        makers = {"off": lambda: resnet(given, False, tiny), "on": lambda: resnet(given, True, tiny)}
    else:
        frameworks = {"bare": bare, "fabric": fabric, "accelerate": accelerate}
        makers = {"disttrain": lambda: disttrain(given, folder)}
        makers |= {name: partial(frameworks[name], given) for name in peers}
    names = list(makers)
    return {name: makers[name]() for name in names[first % len(names) :] + names[: first % len(names)]}


def measure(
    turns: dict[str, Turn], world: World, rounds: int, steps: int, seed: int
) -> dict[str, list[float]]:
    """Seconds of each turn of each side, in the order of the rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    names, order = sorted(turns), random.Random(seed)
    with own_time() as clock:

        def timed(name: str, steps: int) -> float:
            _synchronize(world)
            began = time.perf_counter()
            turns[name](steps)
            _synchronize(world)
            taken = time.perf_counter() - began
            clock.others_s += taken if "disttrain" in turns and name != "disttrain" else 0.0
            return taken

        for name in turns:
            timed(name, WARM_UP)
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                seconds[name].append(timed(name, steps))
    return seconds


def _synchronize(world: World) -> None:
    """All ranks have finished their work."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    if world.size > 1:
        dist.barrier()


class OwnTime:
    """Replaces the trainer's module `time`: `monotonic` leaves `others_s` out, the seconds of other loops.

    Log lines, summaries and stop agreements are due by time. With the clock of the machine, the trainer would
    do each of them in its own turns as often as the loops take together.
    """

    def __init__(self) -> None:
        self.others_s = 0.0

    def time(self) -> float:
        return time.time()

    def thread_time(self) -> float:
        return time.thread_time()

    def monotonic(self) -> float:
        return time.monotonic() - self.others_s


@contextmanager
def own_time() -> Iterator[OwnTime]:
    """Have the trainer read an `OwnTime` within the block."""
    clock = OwnTime()
    with ExitStack() as stack:
        for module in (recorder, live_progress, agreement):
            stack.enter_context(patch.object(module, "time", clock))
        yield clock


def launch(
    case: str, peers: list[str], size: str, rounds: int, device: str, seed: int
) -> dict[str, Any] | None:
    """Seconds by side, samples of a round on all ranks, and steps of a turn; None on ranks other than 0."""
    strategy = case if case in STRATEGIES else "ddp" if rank_info().size > 1 else "single"
    steps = STEPS_OF_TURN[size] if case != "gc_every" or size == "tiny" else 100
    config = config_of(strategy, device, 2 * (WARM_UP + rounds * steps), size)
    with tempfile.TemporaryDirectory() as folder, open_world(config) as world:
        if strategy == "fsdp":
            ensure_group(world)
        given = Given(config, world, in_memory=size == "short")
        turns = sides(case, peers, given, Path(folder), seed, size == "tiny")
        seconds = measure(turns, world, rounds, steps, seed)
        samples = (config.train.local_batch_size or 1) * world.size * steps
        return None if world.rank else {"seconds": seconds, "samples_per_round": samples, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--peers", nargs="*", default=["bare"])
    parser.add_argument("--size", choices=STEPS_OF_TURN, default="100-ms")
    parser.add_argument("--launch", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    found = launch(given.case, given.peers, given.size, given.rounds, given.device, given.launch)
    if found:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
