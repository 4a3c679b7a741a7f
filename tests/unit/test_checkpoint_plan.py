"""Planning of a checkpoint at many ranks: only rank 0 receives, in time proportional to the ranks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from benchmarks.checkpoint_plan import captured, message
from disttrain.checkpoint import storage
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest


@dataclass(frozen=True)
class OneOfTwo(World):
    """Rank 0 or 1 of two, whose peer sends the same value as this rank."""

    collectives: list[str] = field(default_factory=list, kw_only=True)

    def gather_object(self, value: Any) -> list[Any] | None:
        self.collectives.append("gather_object")
        return [value, value] if self.rank == 0 else None

    def all_gather_object(self, value: Any) -> list[Any]:
        self.collectives.append("all_gather_object")
        return [value, value]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_receives_the_results_of_all_ranks(tmp_path: Path, rank: int) -> None:
    """What each rank receives in an all-gather grows with the ranks, and so does the memory for it."""
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    attempt.steps(rank).write_text("{}\n")
    world = OneOfTwo(rank, 2, rank, 2, device=torch.device("cpu"), backend="gloo")
    state = storage.CapturedState({"model.a": torch.ones(3), "model.b": torch.ones(3)}, {})
    checkpoints = CheckpointConfig(asynchronous=False)
    saver = CheckpointSaver(
        tmp_path / "checkpoints", checkpoints, attempt, world, lambda: state, manifest(step=0), 0
    )
    saver.save(1, None)
    saver.close()
    save, *read_back = world.collectives
    assert (save, set(read_back)) == ("gather_object", {"all_gather_object"}), "only the first is read back"
    assert (saver.committed_step, saver.failed) == (1 if rank == 0 else None, 0)


def calls_of(act: Callable[[], object]) -> int:
    """Calls of functions, of Python and of C, while `act` runs: a measure of work without a clock."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def test_the_plan_of_a_rank_does_not_grow_with_the_ranks() -> None:
    few, many = (
        [storage.own_share(captured(rank, layers=1), rank, ranks) for rank in range(ranks)]
        for ranks in (16, 64)
    )
    state = captured(0, layers=1)
    for ranks, shares in ((16, few), (64, many)):
        items = sum(len(storage.plan_share(share)[1].items) for share in shares)
        assert items == len(state.replicated) + ranks * len(state.own), "each replicated tensor once"
    most = [max(len(message(share, rank)) for rank, share in enumerate(shares)) for shares in (few, many)]
    assert most[1] <= most[0]
    work = [calls_of(lambda ranks=ranks: storage.own_share(state, 0, ranks)) for ranks in (16, 64)]
    assert work[1] <= work[0]


def test_the_work_of_rank_0_grows_in_proportion_to_the_ranks(tmp_path: Path) -> None:
    """Linear work grows twice as much from 32 to 64 ranks as from 16 to 32, and quadratic work four times."""
    work = {}
    for ranks in (8, 16, 32, 64):  # modules that the first call imports do not count
        messages = [
            message(storage.own_share(captured(rank, layers=1), rank, ranks), rank) for rank in range(ranks)
        ]
        folder = tmp_path / str(ranks)
        folder.mkdir()
        work[ranks] = calls_of(
            lambda messages=messages, folder=folder: storage.write_metadata(
                folder, [pickle.loads(each) for each in messages]
            )
        )
    assert work[64] - work[32] == pytest.approx(2 * (work[32] - work[16]), rel=0.05)
