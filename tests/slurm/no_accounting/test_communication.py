"""Emulated training over links of 1 Gbit/s: a slow link shows as transfer, a late rank as waiting.

How accurate the figures are is measured by `benchmarks/truth.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from tests.support.minicluster import SUBMIT, MiniCluster

pytestmark = pytest.mark.slow

LINK_BITS_PER_S, SLOWER = 1_000_000_000, 4
GRADIENT_BYTES = 32 << 20
TRANSFER_S = GRADIENT_BYTES * 8 / LINK_BITS_PER_S
LATE_S = 0.2
WARM_UP, STEPS = 3, 13


@dataclass(frozen=True)
class Measured:
    metrics: Metrics
    ranks: list[dict[str, float]]
    """Median seconds of a measured step by phase, for each rank."""


def measure(cluster: MiniCluster, root: Path, *settings: str) -> Measured:
    """Train on two nodes, all gradients in one bucket, which is sent when the backward pass is over."""
    root.mkdir()
    common = ["model.forward_s=0.04", "model.backward_s=0.08", "parallel.ddp.bucket_mb=32"]
    common += [f"train.steps={STEPS}", f"telemetry.warmup_steps={WARM_UP}"]
    sweep = SUBMIT.parent / "sweeps" / "emulated.yaml"
    command = ["sweep", str(sweep), "--nodes", "2", "--set", *common, *settings]
    cluster.submit(*command, "--cluster", "slurm", "--no-report", "--wait", cwd=root)
    (path,) = (root / "runs" / "emulated").glob("n*")
    run = RunDir(path)
    metrics = Metrics.model_validate(read_json(run.metrics))
    steps = [list(read_jsonl(run.attempt(0).steps(rank))) for rank in range(2)]
    return Measured(
        metrics,
        [
            {name: statistics.median(line[name] for line in each[WARM_UP:]) for name in metrics.composition}
            for each in steps
        ],
    )


@pytest.fixture
def slow_links(plain: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster with links of a quarter of their rate."""
    numbers = range(1, plain.nodes + 1)
    try:
        for number in numbers:
            plain.shape(number, LINK_BITS_PER_S // SLOWER)
        yield plain
    finally:
        for number in numbers:
            plain.shape(number, LINK_BITS_PER_S)


def test_a_late_rank_is_waiting_on_its_peer(plain: MiniCluster, tmp_path: Path) -> None:
    found = measure(plain, tmp_path / "run", "model.slow_ranks=[1]", f"model.slow_s={LATE_S}")
    assert (found.metrics.emulated, found.metrics.oversubscribed, found.metrics.world_size) == (
        True,
        False,
        2,
    )
    prompt, late = found.ranks
    assert 0.5 * LATE_S < prompt["comm_wait_s"] < 2 * LATE_S
    assert late["comm_wait_s"] < 0.5 * LATE_S
    assert 0.5 * LATE_S < late["compute_s"] - prompt["compute_s"] < 2 * LATE_S
    for rank in found.ranks:
        assert 0.5 * TRANSFER_S < rank["comm_transfer_s"] < 2 * TRANSFER_S


def test_a_slow_link_is_transfer_on_both_ranks(slow_links: MiniCluster, tmp_path: Path) -> None:
    found = measure(slow_links, tmp_path / "run")
    for rank in found.ranks:
        assert 0.5 * SLOWER * TRANSFER_S < rank["comm_transfer_s"] < 2 * SLOWER * TRANSFER_S
        assert rank["comm_wait_s"] < 0.5 * TRANSFER_S
