"""A `StepLog` of a rank whose peers are imagined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.facts import Communication
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import StepClock
from disttrain.telemetry.step_log import StepLog

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


@dataclass(frozen=True)
class Peers(World):
    """A world whose other ranks were in the calls of each group for `seconds`, in order."""

    seconds: Mapping[Any, list[float]] = field(default_factory=dict)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: Any = None,
    ) -> torch.Tensor:
        if op == dist.ReduceOp.MIN:
            theirs = [self.seconds[group].pop(0) for _ in tensor]
            tensor.copy_(torch.minimum(tensor, torch.tensor(theirs, dtype=tensor.dtype)))
        return tensor

    def start_all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        self.all_reduce(tensor, op, group)


def peers(seconds: Mapping[Any, list[float]]) -> Peers:
    """A `Peers` of two ranks on a CPU."""
    return Peers(
        rank=0, size=2, local_rank=0, local_size=2, device=ALONE.device, backend=None, seconds=seconds
    )


def step_log(
    path: Path,
    clock: StepClock,
    world: World = ALONE,
    *,
    compares: bool = True,
    groups: Mapping[Any, Any] | None = None,
    samples_per_step: int = 1,
    warmup_steps: int = 0,
    **more: Any,
) -> StepLog:
    """The log of one rank; `compares`: whether the ranks compare their communication."""
    communication = Communication(groups=groups or {}) if compares else None
    lines = JsonLinesWriter(path)
    return StepLog(lines, clock, Reductions(world), communication, samples_per_step, warmup_steps, **more)
