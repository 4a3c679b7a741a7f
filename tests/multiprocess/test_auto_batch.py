"""`train.local_batch_size: auto` on real ranks: agreed, safe when a probe is killed, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from disttrain import resolve_batch
from disttrain.checkpoint.integrity import read_manifest
from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks
from tests.support.stopping import Seen, alone, config, train_until

pytestmark = pytest.mark.multiprocess


def hungry(nodes: int, size: int, **train: Any) -> Config:
    """Training in which rank 1, or the only rank, dies in a probe of `size` samples."""
    model = {"kind": "tests.support.small_models:Hungry", "rank": nodes - 1, "size": size}
    return config(nodes=nodes, model=model, train={"steps": 4, "local_batch_size": "auto", **train})


def resumed(world: World, made: Config, folder: Path) -> Seen:
    """The second attempt, in which no search is made."""
    with patch.object(resolve_batch, "search_batch_size", side_effect=AssertionError("searched again")):
        return train_until(world, made, folder, 1, None)


@pytest.mark.slow
def test_ranks_agree_after_a_probe_was_killed_and_a_resumed_run_keeps_the_size(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    made = hungry(2, size=4, global_batch_size=16)
    first = two_ranks.call(train_until, made, tmp_path, 0, 2)
    assert all(len(batch) for seen in first for batch in seen.inputs)
    manifest = read_manifest(tmp_path / "checkpoints" / "step-00000002")
    fit = manifest.batch_fit
    assert fit is not None
    assert fit.out_of_memory == [4]
    assert fit.local_batch_size in (1, 2)
    assert fit.local_batch_size * fit.accumulation * 2 == 16
    assert fit.verified_steps == 20
    assert fit.probes[0].peak_bytes < (1 - fit.reserve) * fit.limit_bytes
    second = two_ranks.call(resumed, made, tmp_path)
    for seen in (*first, *second):
        assert seen.metrics.batch_fit == fit
        assert (seen.metrics.local_batch_size, seen.metrics.global_batch_size) == (fit.local_batch_size, 16)
    assert [seen.metrics.steps for seen in second] == [4, 4]
    assert resolve_batch._kept_size(manifest, 1) == fit.local_batch_size


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="smallest size runs out of memory"):
        train_until(alone(), hungry(1, size=1), tmp_path, 0, None)
