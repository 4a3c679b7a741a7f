"""Planning of a checkpoint at many ranks: only rank 0 receives, in time proportional to the ranks."""

from __future__ import annotations

import itertools
import math
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from benchmarks.checkpoint_plan import captured, message, write_description
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.share import CapturedState, own_share
from disttrain.checkpoint.storage import WrittenShare, describe_shares
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.records.checkpoint import CheckpointFile, CheckpointTensor
from disttrain.records.json_files import json_text
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest


@dataclass(frozen=True)
class OneOfTwo(World):
    """Rank 0 or 1 of two, whose peer sends the same value as this rank."""

    folder: Path = field(kw_only=True)
    collectives: list[str] = field(default_factory=list, kw_only=True)

    def gather_object(self, value: Any) -> list[Any] | None:
        self.collectives.append("gather_object")
        for file in self.folder.glob("*/__0_0.distcp"):
            shutil.copy(file, file.with_name("__1_0.distcp"))
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
    folder = tmp_path / "checkpoints"
    world = OneOfTwo(rank, 2, rank, 2, device=torch.device("cpu"), backend="gloo", folder=folder)
    state = CapturedState({"model.a": torch.ones(3), "model.b": torch.ones(3)}, {})
    checkpoints = CheckpointConfig(asynchronous=False)
    saver = CheckpointSaver(folder, checkpoints, attempt, world, lambda: state, manifest(step=0), 0)
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
        [own_share(captured(rank, layers=1), rank, ranks) for rank in range(ranks)] for ranks in (16, 64)
    )
    state = captured(0, layers=1)
    for ranks, shares in ((16, few), (64, many)):
        items = sum(len(share.tensors) for share in shares)
        assert items == len(state.replicated) + ranks * len(state.own), "each replicated tensor once"
    most = [max(len(message(share, rank)) for rank, share in enumerate(shares)) for shares in (few, many)]
    assert most[1] <= most[0]
    work = [calls_of(lambda ranks=ranks: own_share(state, 0, ranks)) for ranks in (16, 64)]
    assert work[1] <= work[0]


def test_the_work_of_rank_0_grows_in_proportion_to_the_ranks(tmp_path: Path) -> None:
    """Linear work grows twice as much from 32 to 64 ranks as from 16 to 32, and quadratic work four times."""
    work = {}
    for ranks in (8, 16, 32, 64):  # modules that the first call imports do not count
        messages = [message(own_share(captured(rank, layers=1), rank, ranks), rank) for rank in range(ranks)]
        folder = tmp_path / str(ranks)
        folder.mkdir()
        work[ranks] = calls_of(
            lambda messages=messages, folder=folder: write_description(
                folder, [pickle.loads(each) for each in messages]
            )
        )
    assert work[64] - work[32] == pytest.approx(2 * (work[32] - work[16]), rel=0.05)


def written(rank: int, tensors: int, ranks: int) -> WrittenShare:
    """The share of a rank in sharded tensors of different lengths, and in two tensors of its own."""
    described = {
        f"model.{n}": CheckpointTensor(dtype="int8", shape=(1000 + 7 * n, 8), mesh=(ranks,), placements=(0,))
        for n in range(tensors)
    }
    own = {f"rank-{rank:05d}.{name}": CheckpointTensor(dtype="uint8", shape=(5000 + rank,)) for name in "ab"}
    positions, offset = {}, 0
    for name, tensor in (described | own).items():
        if size := math.prod(tensor.chunk(rank)[1]):
            positions[name] = (offset, size)
            offset += size
    return WrittenShare(described | own, positions, CheckpointFile(bytes=offset, sha256="0" * 64), (None, ""))


def test_the_manifest_grows_with_the_ranks_by_their_files_and_their_own_tensors_alone() -> None:
    sizes = {}
    for tensors, ranks in itertools.product((5, 50), (1000, 2000)):
        shares = [written(rank, tensors, ranks) for rank in range(ranks)]
        made = manifest().model_copy(update=describe_shares(shares))
        sizes[tensors, ranks] = len(json_text(made.model_dump(mode="json")))
        rows: dict[str, int] = Counter()
        for part in made.positions:
            for name, (_, size) in part.positions.items():
                rows[name] += size * len(part.ranks)
        assert rows == {name: math.prod(tensor.shape) for name, tensor in made.tensors.items()}
    per_rank = {tensors: (sizes[tensors, 2000] - sizes[tensors, 1000]) / 1000 for tensors in (5, 50)}
    assert per_rank[50] == pytest.approx(per_rank[5], rel=0.1)
    assert sizes[50, 2000] < 2_000_000
