"""The ranks that tests share: a failure on one rank reaches the test, soon, and spoils no later call."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from disttrain.runtime.process_group import World
from tests.support import ranks as ranks_module
from tests.support.ranks import RankFailed, Ranks

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def own_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """Two ranks of this test alone, which it may break."""
    monkeypatch.setattr(ranks_module, "AFTER_FAILURE_S", 1.0)
    ranks = Ranks(2, nodes=1, forked=True)
    yield ranks
    ranks.close()


def rank_of(world: World) -> int:
    return world.rank


def assert_on_rank(world: World, failing: int) -> None:
    assert world.rank != failing, f"rank {failing} is wrong"


def wait_for_rank_1(world: World) -> None:
    """Rank 1 raises, rank 0 waits for it in a collective."""
    assert world.rank == 0, "rank 1 is wrong"
    dist.all_reduce(torch.zeros(1))


def exit_on_rank_1(world: World) -> None:
    if world.rank == 1:
        os._exit(3)


def sleep(world: World, seconds: float) -> None:
    time.sleep(seconds)


def test_a_failed_assertion_within_a_rank_is_an_error_with_its_traceback(two_ranks):
    with pytest.raises(RankFailed, match="AssertionError: rank 1 is wrong") as caught:
        two_ranks.call(assert_on_rank, 1)
    assert "rank 0" not in str(caught.value)
    assert not isinstance(caught.value, AssertionError)
    assert two_ranks.call(rank_of) == [0, 1]


def test_ranks_that_break_are_replaced(own_ranks):
    with pytest.raises(RankFailed, match=r"(?s)rank 1 is wrong.*no result in time from ranks \[0\]"):
        own_ranks.call(wait_for_rank_1)
    assert own_ranks.call(rank_of) == [0, 1]
    with pytest.raises(RankFailed, match="rank 1:\nthe process ended"):
        own_ranks.call(exit_on_rank_1)
    assert own_ranks.call(rank_of) == [0, 1]
    with pytest.raises(RankFailed, match=r"no result in time from ranks \[0, 1\]"):
        own_ranks.call(sleep, 3600, answer_within_s=0.1)
