"""One launch of `step_options.py`: steps with and without an option take turns. Each rank runs this module.

Rank 0 prints mean, 99th percentile and largest step of both sides as a JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import trainer_turns
from disttrain.engine.step import collections_by_hand
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, open_world
from disttrain.transforms import channels_last

AtEnd = Callable[[], Any]
"""Work at the end of a turn."""
Side = tuple[Callable[[], None], Callable[[], AbstractContextManager[AtEnd]]]
"""One step, and the context of a turn."""
WARM_UP = 10
STEPS = {"channels_last": 5, "gc_every": 100}
"""Steps of a turn."""


@contextmanager
def _plain() -> Iterator[AtEnd]:
    yield lambda: None


@contextmanager
def _collected_at_the_end() -> Iterator[AtEnd]:
    """The state of a run with `train.gc_every` after its first step, and the collection of that option."""
    with collections_by_hand():
        yield gc.collect


def resnets(device: torch.device, tiny: bool) -> dict[str, Side]:
    """A ResNet-18 on images of 64 x 64 and, on a GPU, in bf16 with images of 224 x 224."""
    on_gpu = device.type == "cuda"
    batch, side, width = (256, 224, 64) if on_gpu else (8, 64, 32)
    if tiny:
        # with 4 channels, PyTorch 2.13 corrupts memory on a CPU without AVX-512
        batch, side, width = 2, 16, 8
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(10, (batch,), device=device)

    def step_of(option: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        model = ResNet(BasicBlock, (2, 2, 2, 2), 3, side < 64, 10, width).to(device)
        model = channels_last.build(model) if option else model  # type: ignore[assignment]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return {"off": (step_of(False), _plain), "on": (step_of(True), _plain)}


def one_loop(world: World, rounds: int, folder: Path, tiny: bool) -> dict[str, Side]:
    """The trainer's loop on a GPT, the same for both sides."""
    steps = WARM_UP * 2 + 2 * rounds * STEPS["gc_every"]
    config = trainer_turns.config_of(_strategy(), world.device.type, steps, tiny)
    turn = trainer_turns.disttrain(trainer_turns.Given(config, world), folder)
    return {"off": (lambda: turn(1), _plain), "on": (lambda: turn(1), _collected_at_the_end)}


def _strategy() -> str:
    return "ddp" if rank_info().size > 1 else "single"


def measure(
    option: str, make: Callable[[], dict[str, Side]], arguments: argparse.Namespace, world: World
) -> dict[str, Any]:
    """By side of `make`: mean, 99th percentile and largest step in seconds; work at the end of a turn is in
    its last step. The models end with the call, because DDP must not outlive its process group."""
    sides = make()
    names, order = list(sides), random.Random(arguments.launch)
    for step, _ in sides.values():
        for _ in range(WARM_UP):
            step()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        order.shuffle(names)
        for name in names:
            step, context = sides[name]
            with context() as end:
                _synchronize(world)
                for number in range(STEPS[option]):
                    began = time.perf_counter()
                    step()
                    if number == STEPS[option] - 1:
                        end()
                    if world.device.type == "cuda":
                        torch.cuda.synchronize(world.device)
                    seconds[name].append(time.perf_counter() - began)
    return {name: summary(each) for name, each in seconds.items()}


def summary(steps_s: list[float]) -> dict[str, float]:
    p99 = statistics.quantiles(steps_s, n=100, method="inclusive")[98]
    return {"mean_s": statistics.fmean(steps_s), "p99_s": p99, "max_s": max(steps_s)}


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    world.all_gather_object(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("option", choices=STEPS)
    parser.add_argument("--launch", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    config = trainer_turns.config_of(_strategy(), arguments.device, 1, arguments.tiny)
    with tempfile.TemporaryDirectory() as folder, open_world(config) as world:
        makers = {
            "channels_last": lambda: resnets(world.device, arguments.tiny),
            "gc_every": lambda: one_loop(world, arguments.rounds, Path(folder), arguments.tiny),
        }
        found = measure(arguments.option, makers[arguments.option], arguments, world)
        if world.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
