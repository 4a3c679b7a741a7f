"""Known truth: emulated nodes on links of a known rate take the time that a hand calculation gives.

The layers' times and bytes are set, the rate of the links is measured by a plain TCP stream, and the rest is
real: DDP's buckets, gloo's ring, TCP, and the clock of the step whose figures are checked here.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import hand
from tests.support.links import linked, stream_bytes_per_s
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.truth import MEASURES

pytestmark = [pytest.mark.slow, MEASURES]

MIB = 1 << 20
LAYERS, LAYER_BYTES = 8, 4 * MIB
FORWARD_S, BACKWARD_S = 0.160, 0.320
WARM_UP, STEPS = 4, 20


@pytest.fixture(scope="module")
def fleet(can_have_clusters: None, ahead: list[str]) -> Iterator[MiniCluster]:
    """Eight nodes for one rank each, on links of 1 Gbit/s."""
    with linked(f"e{os.getpid()}", 8, ahead) as up:
        yield up


@pytest.fixture(scope="module")
def link_bytes_per_s(fleet: MiniCluster, ahead: list[str]) -> float:
    """What one TCP stream carries between two nodes."""
    return stream_bytes_per_s(fleet, ahead)


@pytest.mark.parametrize(("nodes", "bucket_mb"), [(1, 4), (2, 4), (2, 32), (4, 4), (4, 32), (8, 4), (8, 32)])
def test_a_step_takes_what_a_hand_calculation_gives(
    fleet: MiniCluster, link_bytes_per_s: float, tmp_path: Path, nodes: int, bucket_mb: int
) -> None:
    expected_s = hand.step_s(
        ranks=nodes,
        layers=LAYERS,
        layer_bytes=LAYER_BYTES,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        layers_per_bucket=bucket_mb * MIB // LAYER_BYTES,
        link_bytes_per_s=link_bytes_per_s,
    )
    assert measured_step_s(fleet, tmp_path, nodes, bucket_mb) == pytest.approx(expected_s, rel=0.03)


def measured_step_s(fleet: MiniCluster, root: Path, nodes: int, bucket_mb: int) -> float:
    """Median duration of the measured steps, as the run's records have it."""
    sweep = SUBMIT.parent / "sweeps" / "emulated.yaml"
    settings = [
        f"parallel.bucket_mb={bucket_mb}",
        f"train.steps={STEPS}",
        f"telemetry.warmup_steps={WARM_UP}",
        "telemetry.profiled_steps=0",
        f"train.log_every={STEPS}",
    ]
    fleet.submit(
        *("sweep", str(sweep), "--nodes", str(nodes), "--set", *settings),
        *("--cluster", "slurm", "--wait"),
        cwd=root,
    )
    (run,) = (root / "runs" / "emulated").glob("n*")
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["emulated"], metrics["oversubscribed"], metrics["world_size"]) == (True, False, nodes)
    lines = [json.loads(line) for line in (run / "attempts" / "000" / "steps-00000.jsonl").open()]
    return statistics.median(line["step_s"] for line in lines if line["step"] > WARM_UP)
