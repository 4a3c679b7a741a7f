"""Reductions that run beside the steps, over real gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.telemetry.async_reduction import AsyncReductionQueue
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess


def first_rank_goes_on(world: World) -> list[list[tuple[str, list[float]]]]:
    """Rank 1 begins the reduction after rank 0 has gone on: what the queue of this rank gives, by call."""
    queue = AsyncReductionQueue[str](world)
    token = torch.zeros(1)
    found = []
    if world.rank == 1:
        dist.recv(token, src=0)
    queue.submit("loss", torch.tensor([1.0 + world.rank]), dist.ReduceOp.SUM)
    if world.rank == 0:
        found.append(list(queue.ready()))
        dist.send(token, dst=1)
    found.append(list(queue.ready(wait=True)))
    queue.submit("last", torch.tensor([2.0 + world.rank]), dist.ReduceOp.MIN, wait=True)
    found.append(list(queue.ready()))
    return [[(label, values.tolist()) for label, values in each] for each in found]


def test_a_rank_does_not_wait_for_a_late_one(two_ranks: Ranks) -> None:
    both = [[("loss", [3.0])], [("last", [2.0])]]
    assert two_ranks.call(first_rank_goes_on) == [[[], *both], both]
