"""One launch of `overhead.py`: the instrumented loop and two bare loops take turns in one process.

Each rank runs this module; rank 0 prints a JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from benchmarks import bare, parts
from benchmarks.own_time import OwnTime, own_time
from disttrain.config.config_tree import Config
from disttrain.data.source import Sample, Source
from disttrain.records.dataset import DatasetRecord
from disttrain.runtime.process_group import World, open_world
from disttrain.runtime.rank_info import rank_info
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import StopSignals
from disttrain.telemetry import live_progress
from disttrain.train import prepare, take_step

LR = 1e-3
SIZES = {
    "width": (128, "width of the model: sets the length of a step"),
    "batch": (8, "samples per rank and step"),
    "rounds": (200, "turns of each loop in a launch"),
    "block-steps": (2, "steps of a turn"),
    "warmup": (40, "steps of each loop before the first turn"),
}
"""Options of a launch: default and help."""


def source() -> Source:
    record = DatasetRecord(
        name="random-tokens", version=None, sha256=None, train_samples=bare.SAMPLES, valid_samples=0
    )
    return Source(
        cast(Dataset[Sample], bare.dataset()),
        None,
        "language",
        (bare.CONTEXT,),
        bare.VOCABULARY,
        record,
        tokens_per_sample=bare.CONTEXT,
    )


def config_of(arguments: argparse.Namespace, steps: int) -> Config:
    return Config.model_validate({
        "model": {"kind": "benchmarks.bare:Net", "width": arguments.width},
        "data": {"kind": "benchmarks.turns:source"},
        "train": {"steps": steps, "local_batch_size": arguments.batch},
        "optim": {"lr": LR},
        "resources": {"nodes": rank_info().nodes, "gpus_per_node": rank_info().local_size},
        "parallel": {"ddp": {"gradient_as_bucket_view": True}},
        "telemetry": {"flush_every_s": 1e9} if arguments.every_step else {},
    })  # fmt: skip


class Ours:
    """The instrumented loop, `run_loop` of the trainer in blocks."""

    def __init__(self, config: Config, folder: Path, world: World) -> None:
        self.session = prepare(config, RunOutput.of_job(folder, 0), world, StopSignals())
        self.losses: list[torch.Tensor] = []
        telemetry = self.session.telemetry
        self.special = {parts.PROFILED: telemetry.profiled.steps}
        self.seconds = {name: parts.Part() for name in self.special}

    def start(self) -> None:
        self.session.telemetry.start()

    def run(self, count: int) -> float:
        """Seconds of the block; NaN if the block has a profiled step."""
        telemetry = self.session.telemetry
        not_counted = 0.0
        telemetry.clock.start()
        began = time.perf_counter()
        for step in range(len(self.losses) + 1, len(self.losses) + 1 + count):
            result = take_step(step, self.session)
            for hook in self.session.hooks:
                hook.on_step(result)
            self.losses.append(result.loss)
            for name, steps in self.special.items():
                if step in steps:
                    self.seconds[name].seconds.append(time.perf_counter() - began)
                    not_counted = math.nan
        return time.perf_counter() - began + not_counted


class Bare:
    """The bare loop in blocks, whose time `clock` does not count."""

    def __init__(self, arguments: argparse.Namespace, world: World, clock: OwnTime) -> None:
        torch.manual_seed(0)
        model: torch.nn.Module = bare.Net(width=arguments.width).to(world.device)
        if world.size > 1:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._loop = bare.Loop(model, arguments.batch, world.rank, world.size, LR)
        self._clock = clock
        self.losses: list[torch.Tensor] = []

    def run(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.losses.append(self._loop.step())
        seconds = time.perf_counter() - began
        self._clock.others_s += seconds
        return seconds


def measure(arguments: argparse.Namespace, world: World, folder: Path, clock: OwnTime) -> dict[str, Any]:
    """Logarithms of the ratios of one launch, step times in ms, and the seconds of the parts.

    The ratios are instrumented / geometric mean of the bare loops (mean over rounds, and of median turns) and
    one bare loop / the other.
    """
    warm, per_block = arguments.warmup, arguments.block_steps
    if arguments.every_step:
        live_progress.PROGRESS_EVERY_S = math.inf
    loops: dict[str, Ours | Bare] = {}
    build: dict[str, Callable[[], Ours | Bare]] = {
        "first": lambda: Bare(arguments, world, clock),
        "second": lambda: Bare(arguments, world, clock),
    }
    config = config_of(arguments, warm + arguments.rounds * per_block)
    # The addresses of a model's memory change its speed by some tenths of a percent.
    in_order = list(build)
    in_order.insert(arguments.launch % 3, "ours")
    build["ours"] = lambda: Ours(config, folder, world)
    for name in in_order:
        loops[name] = build[name]()
    ours = cast(Ours, loops["ours"])

    ours.start()
    for loop in loops.values():
        loop.run(warm)
    turns, rounds = random.Random(arguments.launch), []
    with parts.timed() as timed:
        for _ in range(arguments.rounds):
            turns.shuffle(in_order)
            times = {name: loops[name].run(per_block) / per_block for name in in_order}
            rounds.append((times["ours"], times["first"], times["second"]))
    timed |= ours.seconds
    ours.session.telemetry.finish()
    rounds = [times for times in rounds if not math.isnan(times[0])]
    losses = [torch.stack(loop.losses) for loop in loops.values()]
    medians = [math.log(statistics.median(each)) for each in zip(*rounds, strict=True)]
    return {
        "rounds": len(rounds),
        "log_ratio": statistics.fmean(math.log(o) - (math.log(a) + math.log(b)) / 2 for o, a, b in rounds),
        "log_ratio_of_medians": medians[0] - (medians[1] + medians[2]) / 2,
        "log_bare_to_bare": statistics.fmean(math.log(a / b) for _, a, b in rounds),
        "bare_step_ms": 1e3 * statistics.median((a + b) / 2 for _, a, b in rounds),
        "extra_us_median": 1e6 * statistics.median(o - (a + b) / 2 for o, a, b in rounds),
        "losses_identical": all(torch.equal(losses[0], others) for others in losses[1:]),
        "parts": {name: part.seconds for name, part in timed.items() if part.seconds},
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a launch."""
    for name, (default, meaning) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    parser.add_argument("--every-step", action="store_true", help="leave out work that is due by the clock")


def command_line(arguments: argparse.Namespace) -> list[str]:
    """`arguments` as command-line options for another process."""
    sizes = [f"--{name}={getattr(arguments, name.replace('-', '_'))}" for name in SIZES]
    return [*sizes, *(["--every-step"] if arguments.every_step else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument(
        "--launch", type=int, default=0, help="number of the launch: seed of the order of turns"
    )
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_world(config_of(arguments, 1).resources) as world,
        own_time() as clock,
    ):
        result = measure(arguments, world, Path(folder), clock)
        if world.rank == 0:
            print(json.dumps(result))


if __name__ == "__main__":
    main()
