"""Microseconds that a training framework adds to each step of a bare loop: this trainer and three others.

    python -m benchmarks.peers [--save LABEL]
    pip install lightning accelerate                  # for the other frameworks

The model has 36 parameters, so that a step consists of the framework's own work: one rank, CPU, the same
batches in memory and the same optimizer. This trainer measures every step and writes its records; the
others only train. Blocks of steps take turns with blocks of the bare loop. The figure is the median over
blocks of the difference, with its 95 % interval from order statistics (binomial, no distribution assumed).
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks import result_record
from disttrain.config.config_tree import Config
from disttrain.config.sections.optim import OptimConfig
from disttrain.data.source import Arrays, Sample, Source
from disttrain.engine.train import begin
from disttrain.optim.optimizer import build_optimizer
from disttrain.records.dataset import DatasetRecord
from disttrain.runtime.process_group import open_world
from disttrain.runtime.run_output import RunOutput

FEATURES, CLASSES, BATCH = 8, 4, 4
FEWEST_BLOCKS = 6
Block = Callable[[int], float]
"""Runs a number of steps and returns their seconds."""


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


def source() -> Source:
    inputs = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, :CLASSES].argmax(1)
    record = DatasetRecord(name="tiny", version=None, sha256=None, train_samples=64, valid_samples=0)
    data = cast(Dataset[Sample], Arrays(inputs, targets))
    return Source(task="classification", shape=(FEATURES,), classes=CLASSES, train=data, record=record)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    data = source().train
    pairs = [[data[(4 * i + j) % 64] for j in range(BATCH)] for i in range(16)]
    stacked = [
        (torch.stack([x for x, _ in p]), torch.stack([torch.as_tensor(y) for _, y in p])) for p in pairs
    ]
    return itertools.cycle(stacked)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return build_optimizer(model.parameters(), OptimConfig())


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[Tensor], Any]) -> Block:
    """A plain training loop; `backward` replaces `loss.backward()` as a framework requires."""
    given = batches()

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            inputs, targets = next(given)
            backward(F.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began

    return run


def bare() -> Block:
    model = Tiny()
    return loop(model, optimizer_of(model), Tensor.backward)


def ours(folder: Path) -> Block:
    settings = {
        "model": {"kind": "benchmarks.peers:Tiny"},
        "data": {"kind": "benchmarks.peers:source"},
        "train": {"steps": 10**6, "local_batch_size": BATCH},
    }
    config = Config.model_validate(settings)
    world = open_world(config).__enter__()
    trainer = begin(config, RunOutput.of_job(folder, 0), world)
    given = batches()
    trainer.step(given)

    def run(count: int) -> float:
        trainer.recorder.clock.start()
        began = time.perf_counter()
        for _ in range(count):
            trainer.step(given)
        return time.perf_counter() - began

    return run


def fabric() -> Block:
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    model = Tiny()
    wrapped, optimizer = made.setup(model, optimizer_of(model))
    return loop(wrapped, optimizer, made.backward)


def accelerate() -> Block:
    from accelerate import Accelerator

    made = Accelerator(cpu=True)
    model = Tiny()
    wrapped, optimizer = made.prepare(model, optimizer_of(model))
    return loop(wrapped, optimizer, made.backward)


def lightning(folder: Path) -> Block:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Tiny()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.net)

    class Clock(pl.Callback):
        """Seconds from the first batch of a fit to the last."""

        began = ended = 0.0

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 0:
                self.began = time.perf_counter()

        def on_train_batch_end(self, *_: Any) -> None:
            self.ended = time.perf_counter()

    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False}

    def run(count: int) -> float:
        clock = Clock()
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_steps=count, callbacks=[clock], default_root_dir=folder, **quiet
        )
        trainer.fit(Module(), itertools.islice(batches(), count))
        return clock.ended - clock.began

    return run


def added_us(block: Block, base: Block, blocks: int, steps: int) -> list[float]:
    """Microseconds per step that `block` takes longer than `base`, one value for each pair of blocks."""
    block(steps), base(steps)
    added = []
    for number in range(blocks):
        if number % 2:
            mine, theirs = block(steps), base(steps)
        else:
            theirs, mine = base(steps), block(steps)
        added.append(1e6 * (mine - theirs) / steps)
    return added


def median_with_interval(values: list[float]) -> dict[str, Any]:
    """Median and its 95 % interval from order statistics (binomial, no distribution assumed)."""
    ordered = sorted(values)
    low, high = (int(rank) for rank in stats.binom.interval(0.95, len(values), 0.5))
    return {"added_us": statistics.median(values), "added_us_95": [ordered[low - 1], ordered[high]]}


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Added microseconds per step of each framework, with 95 % intervals."""
    return {name: median_with_interval(values) for name, values in raw.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--steps", type=int, default=500, help="steps of a block")
    result_record.add_option(parser)
    arguments = parser.parse_args()
    if arguments.blocks < FEWEST_BLOCKS:
        parser.error(f"--blocks: {arguments.blocks} are too few for an interval, at least {FEWEST_BLOCKS}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    base = bare()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        makers: dict[str, Callable[[], Block]] = {
            "disttrain": lambda: ours(folder / "run"),
            "fabric": fabric,
            "accelerate": accelerate,
            "lightning": lambda: lightning(folder),
        }
        raw: dict[str, list[float]] = {}
        for name, make in makers.items():
            try:
                raw[name] = added_us(make(), base, arguments.blocks, arguments.steps)
            except ImportError:
                print(f"{name:18} not installed")
                continue
            found = median_with_interval(raw[name])
            low, high = found["added_us_95"]
            print(f"{name:18} {found['added_us']:+7.1f} us a step (95 % {low:.1f} to {high:.1f})")
    result_record.save("peers", arguments.save, figures(raw), raw, ("torch", "lightning", "accelerate"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
