"""What the instrumented trainer costs beside a bare PyTorch loop: same model, data, order and wrapping.

    python benchmarks/overhead.py                                        one rank
    python benchmarks/overhead.py --every-step                           without what is done by the clock
    torchrun --nproc-per-node 2 benchmarks/overhead.py                   two ranks, DDP

Three loops live in one process and take turns, a block of steps each: ours, and before and after it in turn
two bare ones. Each round gives the ratio of ours to their geometric mean, with an interval (t on log ratios)
over rounds; that of the two bare ones, beside it, tells how far the figures can be trusted: where a model's
memory lies is worth some tenths of a percent. The losses of all must be identical.

The clock of the telemetry stands still in the others' turns, so what it does by the clock (log lines,
summaries) falls due as in a run of its own. Its parts are timed by themselves, too. Samples of the processes
are taken beside the steps of all loops, and steps that are looked at under the profiler or calibrated (on
several ranks) are in no round: for these, see their parts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from scipy import stats
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bare, parts
from disttrain import records
from disttrain.config import Config
from disttrain.data.source import Sample, Source
from disttrain.output import Output
from disttrain.stop import Signals
from disttrain.telemetry import run as telemetry_run
from disttrain.torchrun import place
from disttrain.train import prepare, take
from disttrain.world import World, open_world

LR = 1e-3


def source() -> Source:
    record = records.Dataset(
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
        "data": {"kind": "benchmarks.overhead:source"},
        "train": {"steps": steps, "local_batch_size": arguments.batch},
        "optim": {"lr": LR},
        "resources": {"nodes": place().nodes, "gpus_per_node": place().local_size},
        "parallel": {"gradient_as_bucket_view": True},
        "telemetry": {"flush_every_s": 1e9} if arguments.every_step else {},
    })  # fmt: skip


class OwnTime:
    """Stands in for `time` in the telemetry: `monotonic` counts the instrumented loop's turns alone."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.others_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() - self.others_s


class Ours:
    """The instrumented loop, `run_loop` of the trainer in blocks."""

    def __init__(self, config: Config, folder: Path, world: World) -> None:
        self.session = prepare(config, Output.of_job(folder, 0), world, Signals())
        self.losses: list[torch.Tensor] = []
        telemetry = self.session.telemetry
        self.special = {parts.LOOK: telemetry.look.steps, parts.CALIBRATION: telemetry.calibration.steps}
        self.seconds = {name: parts.Part() for name in self.special}

    def start(self) -> None:
        self.session.telemetry.start()

    def run(self, count: int) -> float:
        """Seconds; not a number where a step was looked at closely or calibrated."""
        telemetry, boundary = self.session.telemetry, self.session.boundary
        not_counted = 0.0
        telemetry.clock.start()
        began = time.perf_counter()
        for step in range(len(self.losses) + 1, len(self.losses) + 1 + count):
            loss = take(step, self.session)
            telemetry.step_done(step, loss, self.session.trainer.lr)
            if step >= boundary.next_step:
                boundary.meet(step)
            self.losses.append(loss)
            for name, steps in self.special.items():
                if step in steps:
                    self.seconds[name].seconds.append(time.perf_counter() - began)
                    not_counted = math.nan
        return time.perf_counter() - began + not_counted


class Bare:
    """The bare loop, in blocks that are no time to `clock`."""

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


def measure(arguments: argparse.Namespace, world: World, folder: Path) -> dict[str, Any]:
    warm, per_block = arguments.warmup, arguments.block_steps
    clock = OwnTime()
    vars(telemetry_run)["time"] = clock
    if arguments.every_step:
        telemetry_run.TELL_EVERY_S = math.inf
    first = Bare(arguments, world, clock)
    ours = Ours(config_of(arguments, warm + arguments.rounds * per_block), folder, world)
    second = Bare(arguments, world, clock)

    ours.start()
    for loop in (first, ours, second):
        loop.run(warm)
    rounds = []
    with parts.timed() as timed:
        for number in range(arguments.rounds):
            before, after = (first, second) if number % 2 else (second, first)
            times = {loop: loop.run(per_block) / per_block for loop in (before, ours, after)}
            rounds.append((times[ours], times[first], times[second]))
    timed |= ours.seconds
    ours.session.telemetry.finish()
    rounds = [times for times in rounds if not math.isnan(times[0])]
    ratio, ratio_95 = mean_ratio([2 * math.log(o) - math.log(a) - math.log(b) for o, a, b in rounds], 2)
    control, control_95 = mean_ratio([math.log(a / b) for _, a, b in rounds])
    losses = [torch.stack(loop.losses) for loop in (ours, first, second)]
    return {
        "world_size": world.size,
        "bare_step_ms": 1e3 * statistics.median((a + b) / 2 for _, a, b in rounds),
        "ratio": ratio,
        "ratio_95": ratio_95,
        "bare_to_bare": control,
        "bare_to_bare_95": control_95,
        "extra_us_per_step_median": 1e6 * statistics.median(o - (a + b) / 2 for o, a, b in rounds),
        "rounds": len(rounds),
        "block_steps": per_block,
        "losses_identical": all(torch.equal(losses[0], others) for others in losses[1:]),
        "parts": {name: part.summary() for name, part in timed.items() if part.seconds},
    }


def mean_ratio(logs: list[float], times: int = 1) -> tuple[float, list[float]]:
    """Geometric mean of ratios given as `times` their logarithms, and its 95 % interval."""
    mean = statistics.fmean(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean / times), [math.exp((mean - half) / times), math.exp((mean + half) / times)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--width", type=int, default=128, help="width of the model: sets the length of a step"
    )
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--rounds", type=int, default=300, help="turns of each loop")
    parser.add_argument("--block-steps", type=int, default=2, help="steps of a turn")
    parser.add_argument("--warmup", type=int, default=40, help="steps of each loop before the first turn")
    parser.add_argument("--every-step", action="store_true", help="leave out what is done by the clock")
    parser.add_argument("--save", type=Path, help="add the result to this JSON-lines file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_world(config_of(arguments, 1).resources) as world:
        result = measure(arguments, world, Path(folder))
        if world.rank:
            return 0
    low, high = result["ratio_95"]
    print(
        f"{world.size} rank(s): bare step {result['bare_step_ms']:.2f} ms; instrumented / bare = "
        f"{result['ratio']:.4f} (95 % {low:.4f} to {high:.4f}, {result['rounds']} rounds of "
        f"{arguments.block_steps} steps); {result['extra_us_per_step_median']:+.0f} us a step (median); "
        f"losses identical: {result['losses_identical']}"
    )
    low, high = result["bare_to_bare_95"]
    print(f"  a bare loop / another: {result['bare_to_bare']:.4f} (95 % {low:.4f} to {high:.4f})")
    for name, part in result["parts"].items():
        print(
            f"  {name}: {part['median_ms']:.2f} ms (median of {part['calls']}; at most {part['max_ms']:.2f})"
        )
    if arguments.save:
        machine = {"cpu_count": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
        command = " ".join(["overhead.py", *sys.argv[1:]])
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        with open(arguments.save, "a") as file:
            file.write(json.dumps({"date": stamp, "command": command, **machine, **result}) + "\n")
    return 0 if result["losses_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
