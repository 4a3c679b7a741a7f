"""Shares of a checkpoint on real ranks: each copies its own, plans alone, and fits those of its peers."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from disttrain.checkpoint.folder import read_manifest
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.share import CapturedState, HostBuffers, State
from disttrain.checkpoint.state import TrainState
from disttrain.config.config_tree import Config
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks
from tests.support.stopping import Seen, config, train_until

pytestmark = pytest.mark.multiprocess


def test_each_rank_copies_its_share_alone_and_plans_without_its_peers(
    three_ranks: Ranks, tmp_path: Path
) -> None:
    copied = three_ranks.call(copied_names, config(ranks=3), tmp_path)
    path = tmp_path / "checkpoints" / "step-00000005"
    assert sorted(name for names in copied for name in names) == sorted(read_manifest(path).tensors)
    assert all(any(name.startswith("optimizer.") for name in names) for names in copied)


def copied_names(world: World, made: Config, folder: Path) -> list[str]:
    """Names of the tensors that this rank copied for a checkpoint."""
    names: list[str] = []
    copy, write = HostBuffers.copy, CheckpointSaver._write_in_background

    def recording(buffers: HostBuffers, state: State) -> State:
        names.extend(state)
        return copy(buffers, state)

    def without_collectives(saver: CheckpointSaver, state: CapturedState, path: Path) -> Any:
        collectives = ("all_", "gather", "scatter", "broadcast", "reduce", "barrier", "send", "recv")
        forbidden = [name for name in dir(dist) if name.startswith(collectives)]
        with ExitStack() as stack:
            for name in forbidden:
                stack.enter_context(patch.object(dist, name, side_effect=AssertionError(name)))
            written = write(saver, state, path)
            wait([written])
            return written

    with (
        patch.object(HostBuffers, "copy", recording),
        patch.object(CheckpointSaver, "_write_in_background", without_collectives),
    ):
        train_until(world, made, folder, 0, 5)
    return names


def test_ranks_with_other_tensors_commit_nothing(three_ranks: Ranks, tmp_path: Path) -> None:
    seen = three_ranks.call(with_another_layout, config(ranks=3, checkpoint={"every_steps": 4}), tmp_path)
    assert (seen[0].metrics.status, seen[0].metrics.checkpoints_failed) == ("completed", 3)
    assert not list(tmp_path.glob("checkpoints/*"))


def with_another_layout(world: World, made: Config, folder: Path) -> Seen:
    """Rank 1 lacks a tensor, so that it derives other shares than its peers."""
    capture = TrainState.capture

    def without_one(state: TrainState) -> CapturedState:
        captured = capture(state)
        captured.replicated.pop("model.layers.0.0.bias")
        return captured

    with patch.object(TrainState, "capture", without_one) if world.rank == 1 else nullcontext():
        return train_until(world, made, folder, 0, None)
