"""What the instrumented trainer costs beside a bare PyTorch loop: same model, data, order and wrapping.

    python benchmarks/overhead.py                                        one rank
    torchrun --nproc-per-node 2 benchmarks/overhead.py                   two ranks, DDP

Both loops live in one process and take turns, a block of steps each; every pair of neighbouring blocks
gives one ratio, and the interval (t on log ratios) is over pairs. The losses of both must be identical.
What telemetry does by the clock (log lines, summaries) falls due about twice as often per instrumented
step as in a run of its own, because half of the time is the other loop's: the ratio errs upwards. Its
parts are timed by themselves, too. Samples of the processes are taken beside the steps of both loops, and
steps that are looked at under the profiler (on several ranks) are in no pair: for these, see their parts.
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
from contextlib import nullcontext
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
from disttrain.torchrun import place
from disttrain.train import prepare
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
    })  # fmt: skip


def measure(arguments: argparse.Namespace, world: World, folder: Path) -> dict[str, Any]:
    warm, per_block = arguments.warmup, arguments.block_steps
    steps = warm + arguments.pairs * per_block
    session = prepare(config_of(arguments, steps), Output.of_job(folder, 0), world, Signals())

    torch.manual_seed(0)
    model: torch.nn.Module = bare.Net(width=arguments.width).to(world.device)
    if world.size > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    plain = bare.Loop(model, arguments.batch, world.rank, world.size, LR)

    ours_losses, bare_losses, next_step = [], [], 1
    telemetry, trainer = session.telemetry, session.trainer
    looks = parts.Part()

    def run_ours(count: int) -> float:
        """Seconds; not a number where a step was looked at closely."""
        nonlocal next_step
        taken = 0.0
        telemetry.clock.start()
        began = time.perf_counter()
        for step in range(next_step, next_step + count):
            look = step in telemetry.look.steps
            with telemetry.look.at(step, trainer) if look else nullcontext():
                loss = trainer.step(step, session.batches)
            telemetry.step_done(step, loss, trainer.lr)
            if step >= session.boundary.next_step:
                session.boundary.meet(step)
            ours_losses.append(loss)
            if look:
                looks.seconds.append(time.perf_counter() - began)
                taken = math.nan
        next_step += count
        return time.perf_counter() - began + taken

    def run_bare(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            bare_losses.append(plain.step())
        return time.perf_counter() - began

    telemetry.start()
    run_ours(warm), run_bare(warm)
    ratios, bare_s, extra_s = [], [], []
    with parts.timed() as timed:
        for pair in range(arguments.pairs):
            if pair % 2:  # who goes first changes, so that a drift favours neither
                mine, theirs = run_ours(per_block), run_bare(per_block)
            else:
                theirs, mine = run_bare(per_block), run_ours(per_block)
            if math.isnan(mine):
                continue
            ratios.append(math.log(mine / theirs))
            bare_s.append(theirs / per_block)
            extra_s.append((mine - theirs) / per_block)
    timed[parts.LOOK] = looks
    telemetry.finish()
    identical = torch.equal(torch.stack(ours_losses), torch.stack(bare_losses))
    half = stats.t.ppf(0.975, len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    mean = statistics.fmean(ratios)
    return {
        "world_size": world.size,
        "bare_step_ms": 1e3 * statistics.median(bare_s),
        "ratio": math.exp(mean),
        "ratio_95": [math.exp(mean - half), math.exp(mean + half)],
        "extra_us_per_step_median": 1e6 * statistics.median(extra_s),
        "pairs": len(ratios),
        "block_steps": per_block,
        "losses_identical": identical,
        "parts": {name: part.summary() for name, part in timed.items() if part.seconds},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--width", type=int, default=128, help="width of the model: sets the length of a step"
    )
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks")
    parser.add_argument("--block-steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=40, help="steps of each loop before the first pair")
    parser.add_argument("--save", type=Path, help="add the result to this JSON-lines file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_world(config_of(arguments, 1).resources) as world:
        result = measure(arguments, world, Path(folder))
        if world.rank:
            return 0
    low, high = result["ratio_95"]
    print(
        f"{world.size} rank(s): bare step {result['bare_step_ms']:.2f} ms; instrumented / bare = "
        f"{result['ratio']:.4f} (95 % {low:.4f} to {high:.4f}, {result['pairs']} pairs of "
        f"{arguments.block_steps} steps); {result['extra_us_per_step_median']:+.0f} us a step (median); "
        f"losses identical: {result['losses_identical']}"
    )
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
