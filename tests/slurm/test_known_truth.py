"""Known truth on links: a slow one is transfer, a slow rank is waiting, bus bandwidth is the link's rate, and
whatever else is slow on one node is found there as it is on ranks of one machine."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.collective_stats import LARGEST_SHARE
from tests.support import truth
from tests.support.links import linked, stream_bytes_per_s
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.truth import Classes, is_about

pytestmark = [pytest.mark.slow, truth.MEASURES]

MIB = 1 << 20
LINK = 1_000_000_000
BYTES = 32 << 20
FORWARD_S, BACKWARD_S = 0.04, 0.08
LATE_S = 0.05
WARM_UP, STEPS = 4, 46


@pytest.fixture(scope="module")
def pair(can_have_clusters: None, ahead: list[str]) -> Iterator[MiniCluster]:
    """Two nodes for one rank each, on links of 1 Gbit/s."""
    with linked(f"k{os.getpid()}", 2, ahead) as up:
        yield up


@dataclass(frozen=True)
class Seen:
    ranks: list[dict[str, float]]
    """Medians over the measured steps, by rank."""
    metrics: dict[str, Any]


def measure(pair: MiniCluster, root: Path, *settings: str) -> Seen:
    """All gradients in one bucket, which can set out when the backward pass is over, and not before."""
    root.mkdir()
    common = [
        f"model.forward_s={FORWARD_S}",
        f"model.backward_s={BACKWARD_S}",
        "parallel.bucket_mb=32",
        f"train.steps={STEPS}",
        f"telemetry.warmup_steps={WARM_UP}",
        "telemetry.profiled_steps=2",
    ]
    sweep = SUBMIT.parent / "sweeps" / "emulated.yaml"
    pair.submit(
        *("sweep", str(sweep), "--nodes", "2", "--set", *common, *settings),
        *("--cluster", "slurm", "--wait"),
        cwd=root,
    )
    (run,) = (root / "runs" / "emulated").glob("n*")
    metrics = json.loads((run / "metrics.json").read_text())
    left_out = {step for first, last in metrics["left_out"] for step in range(first, last + 1)}
    ranks = []
    for rank in range(2):
        lines = [json.loads(line) for line in (run / "attempts" / "000" / f"steps-{rank:05d}.jsonl").open()]
        measured = [line for line in lines if line["step"] not in left_out]
        assert sum(each["other_s"] for each in measured) < 0.02 * sum(each["step_s"] for each in measured)
        ranks.append(
            {name: statistics.median(line[name] for line in measured) for name in metrics["composition"]}
        )
    return Seen(ranks, metrics)


@pytest.fixture(scope="module")
def clean(pair: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return measure(pair, tmp_path_factory.mktemp("clean") / "run")


def more(found: Seen, clean: Seen, rank: int) -> dict[str, float]:
    return {name: value - clean.ranks[rank][name] for name, value in found.ranks[rank].items()}


def test_the_bus_bandwidth_is_the_rate_of_the_link(pair: MiniCluster, ahead: list[str], clean: Seen) -> None:
    rate = stream_bytes_per_s(pair, ahead)
    assert clean.metrics["comm"]["bytes"] == BYTES
    assert clean.metrics["comm"]["bus_bytes_per_s"] == pytest.approx(rate, rel=0.05)
    assert clean.ranks[0]["comm_transfer_s"] == is_about(BYTES / rate)


def test_a_slow_rank_is_waiting_on_its_peer(pair: MiniCluster, clean: Seen, tmp_path: Path) -> None:
    found = measure(pair, tmp_path / "run", "model.slow_ranks=[1]", f"model.slow_s={LATE_S}")
    unchanged = dict.fromkeys(clean.ranks[0], 0.0)
    transfer_s = clean.ranks[0]["comm_transfer_s"]
    for rank, own in enumerate(("comm_wait_s", "compute_s")):
        changed = more(found, clean, rank)
        assert changed.pop("comm_transfer_s") == pytest.approx(0, abs=0.05 * transfer_s)
        expected = {**unchanged, own: LATE_S}
        assert changed == {name: is_about(expected[name]) for name in changed}, f"rank {rank}"


def test_a_halved_link_is_transfer(pair: MiniCluster, ahead: list[str], clean: Seen, tmp_path: Path) -> None:
    pair.shape(2, LINK // 2)
    try:
        rate = stream_bytes_per_s(pair, ahead)
        found = measure(pair, tmp_path / "run")
    finally:
        pair.shape(2, LINK)
    assert rate < 0.55 * clean.metrics["comm"]["bus_bytes_per_s"]
    for rank in range(2):
        changed = more(found, clean, rank)
        assert found.ranks[rank]["comm_transfer_s"] == is_about(BYTES / rate)
        del changed["comm_transfer_s"]
        assert changed == {name: is_about(0) for name in changed}, f"rank {rank}"
    assert found.metrics["comm"]["bus_bytes_per_s"] == pytest.approx(rate, rel=0.05)


def train_there(pair: MiniCluster, root: Path, **sections: dict[str, Any]) -> Path:
    """The folder of a run on both nodes of what `truth` says, whose gradients are too small for the link."""
    root.mkdir()
    file = root / "truth.yaml"
    file.write_text(yaml.safe_dump(truth.config(2, **sections).as_dict()))
    pair.submit("run", str(file), "--cluster", "slurm", "--wait", cwd=root)
    (run,) = (root / "runs" / "truth").glob("n*")
    return run


@pytest.fixture(scope="module")
def small(pair: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> list[Classes]:
    """Medians by rank of a run in which nothing is slow."""
    return truth.medians(train_there(pair, tmp_path_factory.mktemp("small") / "run"), 2)


@pytest.mark.parametrize("name", ["slow loader", "slow optimizer"])
def test_a_late_rank_is_found(pair: MiniCluster, small: list[Classes], tmp_path: Path, name: str) -> None:
    late = truth.LATE[name]
    truth.assert_one_is_late(train_there(pair, tmp_path / "run", **late.sections), small, late)


def test_jitter_has_its_spread(pair: MiniCluster, small: list[Classes], tmp_path: Path) -> None:
    truth.assert_jitter(train_there(pair, tmp_path / "run", **truth.JITTER), small)


def test_a_blocking_checkpoint_slow_on_one_node(pair: MiniCluster, tmp_path: Path) -> None:
    quick = train_there(pair, tmp_path / "quick", **truth.SAVING)
    slow = train_there(pair, tmp_path / "slow", **truth.SLOW_SAVING)
    truth.assert_saving_is_slow(slow, quick, 2)


def test_what_travels_under_compute_is_hidden(pair: MiniCluster, ahead: list[str], tmp_path: Path) -> None:
    """Buckets arrive before the next ones set out, but for the last: the step waits for that one alone."""
    layers, layer_mb, samples = 4, 4, 7
    rate = stream_bytes_per_s(pair, ahead)
    run = train_there(
        pair,
        tmp_path / "run",
        model={"layers": layers, "layer_mb": layer_mb, "forward_s": 0.02, "backward_s": 0.2},
        parallel={"bucket_mb": layer_mb},
        telemetry={"profiled_steps": samples},
        train={"steps": truth.WARM_UP + samples * LARGEST_SHARE},
    )
    travels_s = layer_mb * MIB / rate
    for rank, classes in enumerate(truth.medians(run, 2)):
        assert classes["comm_transfer_s"] == is_about(travels_s)
        assert classes["comm_wait_s"] == is_about(0)
        looked = [CommSample.model_validate(line) for line in read_jsonl(RunDir(run).attempt(0).comm(rank))]
        assert [len(sample.collectives) for sample in looked] == [layers] * samples
        hidden = [[each.hidden_s for each in sample.collectives] for sample in looked]
        *first, last = map(statistics.median, zip(*hidden, strict=True))
        assert first == [is_about(travels_s)] * (layers - 1)
        assert last == is_about(0)
        assert statistics.median(sample.hidden_s for sample in looked) == is_about((layers - 1) * travels_s)
        # under the profiler one rank may wait for the other; for how long, the clock says of the same step
        clock = {line["step"]: line["comm_exposed_s"] for line in truth.lines(run, rank)}
        apart = [sample.exposed_s - clock[sample.step] for sample in looked]
        assert statistics.median(apart) == is_about(0)
    truth.assert_accounted_for(run, 2)
