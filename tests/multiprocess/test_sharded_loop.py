"""A loop whose model is sharded by `fully_shard` is measured like any run: a late rank is late in compute,
and its peers wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from tests.support import shards
from tests.support.injected_delays import LATE_S, Phases, assert_added, medians
from tests.support.shards import BLOCKS, PASS_S, STEPS, WIDTH

pytestmark = pytest.mark.multiprocess

RANKS = 3
WEIGHT_BYTES = 4 * WIDTH * (WIDTH + 2)  # of a block: its rows are filled up to a multiple of the ranks


def run(world: World, folder: Path | None, options: dict) -> list[float]:
    return shards.train(world, folder, **options)


@pytest.fixture(scope="module")
def clean(three_ranks, tmp_path_factory) -> tuple[Path, list[list[float]]]:
    """A run in which nothing is late: its folder, and the losses by rank."""
    folder = tmp_path_factory.mktemp("sharded") / "n1"
    return folder, three_ranks.call(run, folder, {})


def test_each_collective_is_found_and_the_parts_sum_to_the_step(clean):
    folder, _ = clean
    metrics = metrics_of(folder)
    assert (metrics.strategy, metrics.comm_method) == ("fsdp2", "fsdp_custom_collectives")
    assert metrics.comm_split == "min_over_ranks"
    assert metrics.model == "torch.nn.modules.container:Sequential"
    assert metrics.parameters == BLOCKS * WIDTH * WIDTH
    for rank in range(RANKS):
        for line in read_jsonl(RunDir(folder).attempt(0).steps(rank)):
            assert sum(line[name] for name in PHASES) == pytest.approx(line["step_s"], abs=1e-6)
            assert 0 < line["comm_transfer_s"] <= line["comm_exposed_s"]
    for classes in medians(folder, RANKS):
        assert classes["compute_s"] >= 2 * BLOCKS * PASS_S


def test_a_sampled_step_has_the_collectives_with_their_bytes(clean):
    folder, _ = clean
    # gloo carries a reduce-scatter out as an all-reduce of what goes in
    expected = {"all_gather": 2 * BLOCKS, "all_reduce": BLOCKS}
    assert kinds(folder) == {kind: [WEIGHT_BYTES] * count for kind, count in expected.items()}


def test_the_loop_computes_what_it_would_without(three_ranks, clean):
    _, losses = clean
    assert three_ranks.call(run, None, {}) == losses
    assert losses[0][-1] < losses[0][0] / 2


@pytest.mark.parametrize(
    "late",
    [{1: "forward"}, {1: "forward", 2: "backward"}],
    ids=["one rank", "one in forward, one in backward"],
)
def test_each_late_rank_is_waited_for(three_ranks, tmp_path, late):
    three_ranks.call(run, tmp_path / "clean" / "n1", {})  # beside it: a disturbance of `clean` would stay
    three_ranks.call(run, tmp_path / "n1", {"late_s": {rank: {way: LATE_S} for rank, way in late.items()}})
    expected: list[Phases] = []
    for rank in range(RANKS):
        waited_s = LATE_S * len(late.keys() - {rank})
        own_s = {"compute_s": LATE_S} if rank in late else {}
        expected.append(own_s | ({"comm_wait_s": waited_s} if waited_s else {}))
    assert_added(medians(tmp_path / "n1", RANKS), medians(tmp_path / "clean" / "n1", RANKS), expected, LATE_S)


def test_shards_that_are_kept_and_gradients_that_are_gathered_are_measured(three_ranks, tmp_path):
    three_ranks.call(run, tmp_path / "n1", {"build": "kept", "accumulation": 2})
    assert metrics_of(tmp_path / "n1").comm_method == "fsdp_custom_collectives"
    found = kinds(tmp_path / "n1")
    assert {kind: len(sizes) for kind, sizes in found.items()} == {"all_gather": 2 * BLOCKS, "all_reduce": 3}
    for classes in medians(tmp_path / "n1", RANKS):
        assert classes["compute_s"] >= 2 * 2 * BLOCKS * PASS_S


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"build": "but_the_last"},
            "2.linear.weight is not sharded, and",
        ),
        ({"build": "with_hook"}, "the hook of set_all_reduce_hook may communicate"),
        ({"unshard": True}, "an unshard was asynchronous"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else None,
)
def test_what_cannot_be_seen_is_null_with_the_reason(three_ranks, tmp_path, options, reason):
    three_ranks.call(run, tmp_path / "n1", options)
    metrics = metrics_of(tmp_path / "n1")
    assert (metrics.status, metrics.steps, metrics.comm_method) == ("completed", STEPS, None)
    assert metrics.null_reasons["comm_method"].startswith(reason)
    assert metrics.composition["comm_wait_s"] is None
    for line in read_jsonl(RunDir(tmp_path / "n1").attempt(0).steps(0)):
        assert line["comm_wait_s"] is line["comm_transfer_s"] is line["comm_exposed_s"] is None
        assert sum(line[name] or 0.0 for name in PHASES) == pytest.approx(line["step_s"], abs=1e-6)


def metrics_of(folder: Path) -> Metrics:
    return Metrics.model_validate(read_json(folder / "metrics.json"))


def kinds(folder: Path) -> dict[str, list[int | None]]:
    """Bytes of the collectives of the sampled step, by kind."""
    [sample] = [CommSample.model_validate(line) for line in read_jsonl(RunDir(folder).attempt(0).comm(0))]
    found: dict[str, list[int | None]] = {}
    for each in sample.collectives:
        found.setdefault(each.kind, []).append(each.bytes)
    return found
