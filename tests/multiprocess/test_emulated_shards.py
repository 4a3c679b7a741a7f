"""An emulated model sharded by `fully_shard`: collectives, gradients, and delays in their phases."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from tests.support import emulated_shards
from tests.support.emulated_shards import COMPUTE_S, NUMBERS, OPTIMIZER_S
from tests.support.injected_delays import (
    LATE_S,
    Phases,
    assert_about,
    assert_added,
    measured_steps,
    medians,
)
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

RANKS = 3
COLLECTIVE_S = 0.005

GATHERS = [("gather", RANKS * -(-count // RANKS)) for count in NUMBERS if count]
SCATTERS = [("scatter", elements) for _, elements in GATHERS]
WHOLE = sum(elements for _, elements in GATHERS)
COLLECTIVES = {
    "every_layer": [*GATHERS, *GATHERS, *SCATTERS],
    "every_layer_kept": [*GATHERS, *SCATTERS],
    "root": [("gather", WHOLE), ("scatter", WHOLE)],
    "root_resharded": [("gather", WHOLE), ("gather", WHOLE), ("scatter", WHOLE)],
}
"""Of a step: every layer has its own where it is sharded, filled up to a multiple of the ranks."""
OTHERS = [build_as for build_as in COLLECTIVES if build_as != "every_layer"]


def run(ranks: Ranks, folder: Path, **options) -> list[list[tuple[str, int]]]:
    return ranks.call(train, folder, options)


def train(world: World, folder: Path, options: dict) -> list[tuple[str, int]]:
    return emulated_shards.train(world, folder, **options)


def step_s(folder: Path, rank: int) -> float:
    return statistics.median(line["step_s"] for line in measured_steps(folder, rank))


@pytest.fixture
def clean(three_ranks, tmp_path) -> tuple[Path, list[Phases]]:
    """A run in which nothing is slow, measured beside the test: its folder, and medians by rank."""
    folder = tmp_path / "clean" / "n1"
    run(three_ranks, folder)
    return folder, medians(folder, RANKS)


@pytest.mark.parametrize(
    ("build_as", "dtype_bytes"),
    [
        ("every_layer", 4),
        ("every_layer", 2),
        *((other, 4) for other in OTHERS),
    ],
)
def test_a_step_is_what_layers_take_and_what_they_wait_for(three_ranks, tmp_path, build_as, dtype_bytes):
    made = run(
        three_ranks,
        tmp_path / "n1",
        build_as=build_as,
        dtype_bytes=dtype_bytes,
        longer_s=COLLECTIVE_S,
    )
    for rank, classes in enumerate(medians(tmp_path / "n1", RANKS)):
        assert sorted(made[rank]) == sorted(COLLECTIVES[build_as])
        exposed_s = classes["comm_wait_s"] + classes["comm_transfer_s"]
        assert exposed_s >= COLLECTIVE_S * len(made[rank])
        assert_about(classes["compute_s"], COMPUTE_S, "compute")
        assert_about(classes["optimizer_s"], OPTIMIZER_S, "optimizer")
        for line in read_jsonl(RunDir(tmp_path / "n1").attempt(0).steps(rank)):
            assert sum(line[name] for name in PHASES) == pytest.approx(line["step_s"], abs=1e-6)


@pytest.mark.parametrize("build_as", COLLECTIVES)
@pytest.mark.parametrize("dtype_bytes", [4, 2])
def test_gradients_and_what_is_learned_are_those_of_a_model_that_is_whole(three_ranks, build_as, dtype_bytes):
    whole = three_ranks.call(emulated_shards.learn, None, dtype_bytes)
    gradients, weights = whole[0]
    assert [len(gradient) for gradient in gradients] == [count for count in NUMBERS if count]
    assert {number for gradient in gradients for number in gradient} == {4.0}
    assert {number for weight in weights for number in weight} == {-4.0}
    assert three_ranks.call(emulated_shards.learn, build_as, dtype_bytes) == whole


def test_ranks_that_are_late_one_after_the_other_make_the_step_longer_by_both(three_ranks, clean, tmp_path):
    """One cannot be late while it waits for the other."""
    run(three_ranks, tmp_path / "n1", late_s={0: {1: LATE_S}, 1: {0: LATE_S}})
    expected = [
        {"compute_s": LATE_S, "comm_wait_s": LATE_S},
        {"compute_s": LATE_S, "comm_wait_s": LATE_S},
        {"comm_wait_s": 2 * LATE_S},
    ]
    assert_added(medians(tmp_path / "n1", RANKS), clean[1], expected, LATE_S)
    for rank in range(RANKS):
        assert_about(step_s(tmp_path / "n1", rank) - step_s(clean[0], rank), 2 * LATE_S, "longer step")


@pytest.mark.parametrize("unseen", [{"build_as": "replicated"}, {"unshard": True}], ids=str)
def test_where_communication_cannot_be_seen_it_is_waited_for_too(three_ranks, tmp_path, unseen):
    base, late = tmp_path / "base", tmp_path / "late"
    run(three_ranks, base, **unseen)
    run(three_ranks, late, late_s={0: {1: LATE_S}, 1: {0: LATE_S}}, **unseen)
    for rank in range(RANKS):
        assert_about(step_s(late, rank) - step_s(base, rank), 2 * LATE_S, "longer step")


def test_a_loop_over_an_emulated_model_is_marked_as_one(clean):
    metrics = Metrics.model_validate(read_json(clean[0] / "metrics.json"))
    assert (metrics.emulated, metrics.model, metrics.strategy) == (True, "emulated", "fsdp2")
    assert not metrics.oversubscribed
    assert 0 < metrics.emulation_late_s < 0.2 * COMPUTE_S
