"""Emulated training on real Slurm over links of 1 Gbit/s, with a slow node, for which the others wait, and a
slow link: both are named with their size. `benchmarks/truth.py` measures how accurate the figures are."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.results.culprits import diagnose
from analysis.results.links import link_rates
from analysis.results.rank_steps import rank_steps
from tests.support.injected_delays import assert_about
from tests.support.minicluster import SUBMIT, MiniCluster

pytestmark = pytest.mark.slow

NODES, RANKS_PER_NODE = 3, 2
SLOW_NODE, NODE_OF_SLOW_LINK = 2, 3
LINK_BITS_PER_S, SLOWER = 1_000_000_000, 3
GRADIENT_MB, WARM_UP, MEASURED = 1, 3, 20
LATE_S = 0.05


def train_on(cluster: MiniCluster, root: Path, *settings: str) -> Path:
    """Train on all nodes with all gradients in one bucket; the run's folder."""
    common = [
        f"resources.gpus_per_node={RANKS_PER_NODE}", "model.layers=2", f"model.layer_mb={GRADIENT_MB / 2}",
        "model.forward_s=0.03", "model.backward_s=0.06", f"parallel.ddp.bucket_mb={GRADIENT_MB}",
        f"train.steps={WARM_UP + MEASURED}", "job.preflight=full", f"telemetry.warmup_steps={WARM_UP}",
    ]  # fmt: skip
    sweep = SUBMIT.parent / "sweeps" / "emulated.yaml"
    command = ["sweep", str(sweep), "--nodes", str(NODES), "--set", *common, *settings]
    cluster.submit(*command, "--cluster", "slurm", "--no-report", "--wait", cwd=root)
    (path,) = (root / "runs" / "emulated").glob("n*")
    return path


def test_a_slow_node_and_a_slow_link_are_named(three_nodes: MiniCluster, tmp_path: Path) -> None:
    """One link is held to a third, which the pre-flight does not refuse; its ranks compute as fast as any:
    none of them is named."""
    slow = [rank for rank in range(NODES * RANKS_PER_NODE) if rank // RANKS_PER_NODE == SLOW_NODE - 1]
    try:
        three_nodes.shape(NODE_OF_SLOW_LINK, LINK_BITS_PER_S // SLOWER)
        path = train_on(three_nodes, tmp_path, f"model.slow_ranks={slow}", f"model.slow_s={LATE_S}")
    finally:
        three_nodes.shape(NODE_OF_SLOW_LINK, LINK_BITS_PER_S)
    (run,) = load_runs([path.parent])
    seconds = rank_steps(run.steps)
    assert seconds is not None
    culprits = {each.name: each for each in diagnose(seconds, link_rates(run.attempts)).culprits}
    link = culprits.pop(f"the link of node {three_nodes.name}-{NODE_OF_SLOW_LINK}")
    node = culprits.pop(f"node {three_nodes.name}-{SLOW_NODE}")
    assert (culprits, node.ranks) == ({}, tuple(slow))
    waits_s = seconds.seconds["comm_wait_s"].mean(axis=1)
    for rank, wait_s in enumerate(waits_s):
        assert wait_s < 0.5 * LATE_S if rank in slow else 0.5 * LATE_S < wait_s < 2 * LATE_S, f"rank {rank}"
    ranks = NODES * RANKS_PER_NODE
    usual_s = 2 * (ranks - 1) / ranks * GRADIENT_MB * 2**20 * 8 / LINK_BITS_PER_S
    assert_about(link.excess_s.value, (SLOWER - 1) * usual_s, "excess of transfer")
    assert_about(node.excess_s.value, LATE_S, "excess of compute")
