"""The data of a run on this rank: source, batch plan, and batches by step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from disttrain.config.batch_plan import BatchPlan, plan_batch
from disttrain.config.config_tree import Config
from disttrain.data.loader import make_loader
from disttrain.data.sampler import GlobalOrder, RankBatches
from disttrain.data.source import Batch, Source
from disttrain.errors import ConfigError
from disttrain.parallel.mesh import Mesh
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class TrainingData:
    """Data of one rank; samples are distributed over the data-parallel ranks of `mesh`."""

    source: Source
    plan: BatchPlan
    steps: int
    """Optimizer steps of the whole run."""
    mesh: Mesh
    config: Config

    def example(self) -> Batch:
        """A micro-batch of the first samples, in host memory; it does not advance the sampler."""
        samples = self.source.record.train_samples
        return default_collate([self.source.train[i % samples] for i in range(self.plan.local)])

    def batches(self, start_step: int, device: torch.device) -> Iterator[Batch]:
        """The micro-batches of this rank after `start_step` steps. Draws from torch's random number
        generator."""
        seed, rank = self.config.train.seed, self.mesh.data_rank
        order = GlobalOrder(self.source.record.train_samples, seed)
        mine = RankBatches(order, self.plan, rank, self.steps, start_step)
        return iter(
            make_loader(
                self.source.train, mine, self.config.data, device, seed=(seed, rank), first=mine.first
            )
        )

    def metrics_fields(self) -> dict[str, Any]:
        """Data and batch sizes as fields of `Metrics`."""
        return {
            "dataset": self.source.record,
            "steps_total": self.steps,
            "local_batch_size": self.plan.local,
            "accumulation": self.plan.accumulation,
            "global_batch_size": self.plan.global_,
        }


def spread_source(source: Source, config: Config, mesh: Mesh, world: World) -> TrainingData:
    """Distribute `source` over the ranks. All ranks together.

    Raises `ConfigError` if the data differs between ranks, or if the global batch size is not divisible.
    """
    refuse_unequal_data(source, world)
    local = config.train.local_batch_size
    assert local != "auto", "resolved before the data is built"
    plan = plan_batch(local, config.train.global_batch_size, mesh.data_size)
    return TrainingData(source, plan, count_steps(config, source, plan), mesh, config)


def refuse_unequal_data(source: Source, world: World) -> None:
    """Raise `ConfigError` on all ranks if the data of any rank differs.

    Nodes with different versions of Python have different default corpora, and one may hold an old copy of
    the files; no later check would find either.
    """
    record = source.record
    hashes = (record.sha256, record.fingerprint, source.files_sha256)  # a packed folder states the first
    first, *others = world.on_all_ranks(lambda: (record.name, record.version, record.bytes, *hashes))
    for rank, other in enumerate(others, 1):
        if other != first:
            raise ConfigError(f"data differs between ranks: rank 0 has {first}, rank {rank} has {other}")


def count_steps(config: Config, source: Source, plan: BatchPlan) -> int:
    """Optimizer steps of the whole run; epochs are rounded up to whole steps."""
    if config.train.steps is not None:
        return config.train.steps
    assert config.train.epochs is not None
    return max(1, math.ceil(config.train.epochs * source.record.train_samples / plan.global_))
