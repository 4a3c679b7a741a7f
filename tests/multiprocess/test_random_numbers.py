"""Random numbers of a run: dropout and augmentation differ between ranks and between steps, also after a
restart."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from disttrain.config.batch_plan import plan_batch
from disttrain.config.config_tree import Config
from disttrain.data.source import Source
from disttrain.engine.objective import Task
from disttrain.engine.spec import TrainSpec
from disttrain.engine.train import batches_of, begin, run
from disttrain.parallel.base import Mesh
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.ranks import Ranks
from tests.support.small_models import FEATURES, Net, source
from tests.support.stopping import alone, config, recorded

pytestmark = pytest.mark.multiprocess

STEPS = 4
GENERATORS = {"torch": slice(0, 4), "python": slice(4, 6), "numpy": slice(6, 8)}
"""The features of a sample of `Drawn` by the generator that drew them."""


class Masking(Net):
    """Keeps the dropout mask of each forward pass of training."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.masks.append(F.dropout(torch.ones(64), 0.5))
        return super().forward(inputs)


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """Samples that consist of random numbers, as an augmentation draws them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        others = [random.random(), random.random(), *np.random.rand(2)]
        return torch.cat([torch.rand(4), torch.tensor(others).float()]), torch.tensor(index % 4)


def drawn_source(samples: int) -> Source:
    return dataclasses.replace(source(samples, 0), train=Drawn())


def made(ranks: int, steps: int, workers: int = 0, **checkpoint: Any) -> Config:
    return config(
        nodes=ranks,
        model={"kind": "tests.multiprocess.test_random_numbers:Masking"},
        data={"kind": "tests.multiprocess.test_random_numbers:drawn_source", "workers": workers},
        train={"steps": steps, "local_batch_size": None, "global_batch_size": 4},
        checkpoint={"every_steps": STEPS, **checkpoint},
    )


def random_numbers(world: World, made: Config, folder: Path) -> dict[str, list[bytes]]:
    """The random numbers of this rank by use: one dropout mask per step, and each generator's numbers per
    sample."""
    trainer = begin(made, RunOutput.of_job(folder, 0), world)
    model = trainer.model
    assert isinstance(model, Masking)
    inputs: list[bytes] = []
    with trainer:
        run(trainer, recorded(batches_of(trainer), inputs))
    masks = model.masks[-len(inputs) :]  # without those of the passes that prime DDP's buckets
    numbers = {"dropout": [mask.numpy().tobytes() for mask in masks]}
    samples = np.frombuffer(b"".join(inputs), np.float32).reshape(-1, FEATURES)
    return numbers | {
        name: [row[columns].tobytes() for row in samples] for name, columns in GENERATORS.items()
    }


def assert_all_differ(*parts: dict[str, list[bytes]]) -> None:
    for use in ("dropout", *GENERATORS):
        drawn = [numbers for part in parts for numbers in part[use]]
        assert len(set(drawn)) == len(drawn) >= STEPS, use


def test_ranks_draw_different_random_numbers(two_ranks: Ranks, tmp_path: Path) -> None:
    assert_all_differ(*two_ranks.call(random_numbers, made(2, STEPS), tmp_path))


def test_another_number_of_ranks_draws_random_numbers_of_its_own(two_ranks: Ranks, tmp_path: Path) -> None:
    before = random_numbers(alone(), made(1, STEPS), tmp_path / "before")
    [saved] = (tmp_path / "before" / "checkpoints").glob("step-*")
    resumed = made(2, 2 * STEPS, start_from=str(saved))
    after = two_ranks.call(random_numbers, resumed, tmp_path / "after")
    assert [len(numbers["dropout"]) for numbers in after] == [STEPS, STEPS]
    assert_all_differ(before, *after)


def test_loader_processes_of_ranks_draw_different_random_numbers() -> None:
    data, plan = drawn_source(40), plan_batch(2, 4, 2)
    made_of = {"make_model": Net, "make_optimizer": lambda *_: None, "objective": Task(data.task)}
    drawn = []
    for rank in range(2):
        spec = TrainSpec(
            made(2, STEPS, workers=1), mesh=Mesh(rank, replicate=2), plan=plan, steps=STEPS, source=data,
            strategy_reason="", **made_of,
        )  # fmt: skip
        for inputs, _ in spec.batches(data.train, 0, torch.device("cpu")):
            drawn += [sample.numpy().tobytes() for sample in inputs]
    assert len(set(drawn)) == len(drawn) == 2 * 2 * STEPS
