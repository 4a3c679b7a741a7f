"""`train.local_batch_size: auto` on real ranks: agreed, safe when a probe is killed, kept."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from disttrain.checkpoint.folder import read_manifest
from disttrain.config.config_tree import Config
from disttrain.engine import auto_batch
from disttrain.engine.auto_batch import search_batch_size
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import BatchFit
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from disttrain.records.json_files import read_json
from disttrain.runtime.process_group import World
from tests.support.memory_group import NoMemoryGroup, make_memory_group
from tests.support.ranks import Ranks
from tests.support.small_models import FEATURES, Growing, Leaping
from tests.support.stopping import Seen, alone, config, train_until

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parents[2]
TOO_LARGE = 8
LIMIT = 800 << 20
"""Bytes of a process: of torch about 370 MiB, and of four samples of `Growing` 256 MiB."""


def hungry(nodes: int, size: int, *, killed: bool = False, **train: Any) -> Config:
    """Training in which rank 1, or the only rank, has no memory for a probe of `size` samples."""
    model = {
        "kind": "tests.support.small_models:Hungry", "rank": nodes - 1, "size": size, "killed": killed,
    }  # fmt: skip
    return config(nodes=nodes, model=model, train={"steps": 4, "local_batch_size": "auto", **train})


def resumed(world: World, made: Config, folder: Path) -> Seen:
    """The second attempt, in which no search is made."""
    with patch.object(auto_batch, "search_batch_size", side_effect=AssertionError("searched again")):
        return train_until(world, made, folder, 1, None)


@pytest.mark.slow
def test_ranks_agree_after_a_probe_without_memory_and_a_resumed_run_keeps_the_size(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    made = hungry(2, size=4, global_batch_size=16)
    first = two_ranks.call(train_until, made, tmp_path, 0, 2, answer_within_s=240.0)
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


def limited(world: World, made: Config) -> BatchFit:
    """A search under a limit of the kernel, by which a pass of `TOO_LARGE` samples fails."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, hard))
    try:
        fit = search_batch_size(made, world)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            Growing()(torch.zeros(TOO_LARGE, FEATURES))
        return fit
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.slow
def test_a_size_that_fits_under_a_limit_of_the_kernel_is_found(two_ranks: Ranks) -> None:
    model = {"kind": "tests.support.small_models:Growing"}
    train = {"steps": 4, "local_batch_size": "auto"}
    made = config(nodes=2, model=model, train=train, parallel={"strategy": "ddp"})
    fit, of_other_rank = two_ranks.call(limited, made, answer_within_s=240.0)
    assert fit == of_other_rank
    assert (fit.limit_bytes, fit.limit_source) == (LIMIT, "RLIMIT_DATA")
    budget = (1 - fit.reserve) * LIMIT
    assert fit.verified_peak_bytes <= budget
    tried = [probe.local_batch_size for probe in fit.probes]
    assert tried[:3] == [1, 2, 4]
    assert fit.local_batch_size in tried
    assert max(tried) < TOO_LARGE, "its peak was predicted"
    assert fit.fixed_bytes + TOO_LARGE * fit.bytes_per_sample > budget


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of this machine with 1 GiB of memory."""
    try:
        folder = make_memory_group(1 << 30)
    except NoMemoryGroup as why:
        pytest.skip(f"no control group can be made: {why}")
    yield folder
    folder.rmdir()


@pytest.mark.slow
def test_a_probe_that_the_kernel_kills_at_the_limit_of_a_control_group_ends_alone(
    small_group: Path, tmp_path: Path
) -> None:
    (tmp_path / "auto.yaml").write_text(
        "{model: {kind: 'tests.support.small_models:Leaping'}, "
        "data: {kind: 'tests.support.small_models:source'}, "
        "train: {steps: 2, local_batch_size: auto}, resources: {device: cpu}}"
    )
    command = [sys.executable, "-m", "disttrain", "--config", "auto.yaml", "--run-dir", "run"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", f'echo $$ > {small_group}/cgroup.procs && exec "$@"', "sh", *command],
        cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fit = BatchFit.model_validate(read_json(tmp_path / "run" / "metrics.json")["batch_fit"])
    assert fit.out_of_memory == [Leaping.TOO_MANY]
    assert fit.local_batch_size < Leaping.TOO_MANY
    assert str(small_group) in fit.limit_source
    assert count_killed_probes(tmp_path) == 1, "the agent counts it"
    kills = small_group / ("memory.oom_control" if "memory" in small_group.parts else "memory.events")
    assert "oom_kill 1\n" in kills.read_text()


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="smallest size runs out of memory"):
        train_until(alone(), hungry(1, size=1), tmp_path, 0, None)


@pytest.mark.slow
def test_a_probe_that_is_killed_from_outside_does_not_count_as_out_of_memory(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="rank 1: the probe of 4 samples was ended by SIGKILL"):
        two_ranks.call(train_until, hungry(2, size=4, killed=True), tmp_path, 0, None)
