"""Reductions that run beside the steps, over real gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from disttrain.telemetry.reductions import Reductions
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess


def first_rank_goes_on(world: World) -> list[list[float]]:
    """Rank 1 begins the reduction after rank 0 has gone on: the results that have arrived, by call."""
    reductions, token = Reductions(world), torch.zeros(1)
    results: list[float] = []
    found = []
    if world.rank == 1:
        dist.recv(token, src=0)
    reductions.submit(
        torch.tensor(1.0 + world.rank), dist.ReduceOp.SUM, lambda sum_: results.append(sum_.item())
    )
    if world.rank == 0:
        reductions.collect()
        found.append(results.copy())
        dist.send(token, dst=1)
    reductions.then(lambda: results.append(0.0))
    reductions.collect(wait=True)
    found.append(results.copy())
    least = torch.tensor(2.0 + world.rank)
    reductions.submit(least, dist.ReduceOp.MIN, lambda least: results.append(least.item()), wait=True)
    reductions.collect()
    return [*found, results]


def test_a_rank_does_not_wait_for_a_late_one(two_ranks: Ranks) -> None:
    both = [[3.0, 0.0], [3.0, 0.0, 2.0]]
    assert two_ranks.call(first_rank_goes_on) == [[[], *both], both]
