"""Known truth: what is made slow is found on its rank, in its class, in its size, on its peers as waiting,
and nowhere else. The ranks wait where others compute, so two processors are enough for all of them."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import exposed
from disttrain.records import CLASSES, CommSample
from disttrain.rundir import RunDir, read_jsonl
from disttrain.telemetry.sampling import LARGEST_SHARE
from disttrain.world import World
from tests.multiprocess.test_train import make_config
from tests.support.ranks import Ranks
from tests.support.truth import (
    TOLERANCE_S,
    WARM_UP,
    Classes,
    ahead,
    is_about,
    lines,
    medians,
    medians_of,
    other_share,
    run_each,
)

pytestmark = pytest.mark.multiprocess

STEP = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.03125, "forward_s": 0.04, "backward_s": 0.08,
              "optimizer_s": 0.01},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 2048, "valid_samples": 0},
    "train": {"steps": 23, "local_batch_size": 4, "log_every": 10},
    "telemetry": {"warmup_steps": 3, "sinks": [], "samples": 0},
    "parallel": {"bucket_mb": 0.03125},
}  # fmt: skip
RANKS = 3
LATE_S = 0.05
LATE_RANK = 1


def run(
    ranks: Ranks, folder: Path, *, slow_write_s: float = 0.0, only: dict | None = None, **sections: dict
) -> list[Classes]:
    """Medians by rank; `only` holds for the late rank, `sections` for all."""
    configs = [make_config(STEP, ranks.size, **sections) for _ in range(ranks.size)]
    if only:
        configs[LATE_RANK] = make_config(STEP, ranks.size, **{**sections, **only})
    ranks.call(run_each, configs, folder, {LATE_RANK: slow_write_s})
    return medians(folder, ranks.size)


@pytest.fixture(scope="module")
def clean(three_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> list[Classes]:
    """Medians by rank of a run in which nothing is slow."""
    folder = tmp_path_factory.mktemp("clean")
    return run(three_ranks, folder)


def assert_found(
    found: list[Classes],
    clean: list[Classes],
    expected: list[dict[str, float]],
    within_s: float = TOLERANCE_S,
) -> None:
    """Each rank has more of each class by what is expected, by nothing where nothing is."""
    for rank, classes in enumerate(found):
        more = {name: classes[name] - clean[rank][name] for name in CLASSES}
        assert more == {name: is_about(expected[rank].get(name, 0.0), within_s) for name in CLASSES}, (
            f"rank {rank}"
        )


def assert_accounted_for(folder: Path) -> None:
    for rank in range(RANKS):
        assert other_share(folder, rank) < 0.02, f"rank {rank}"


def waits_but(rank: int, seconds: float, own: str) -> list[dict[str, float]]:
    """One rank has it in a class of its own, and its peers wait for it."""
    return [{own: seconds} if each == rank else {"comm_wait_s": seconds} for each in range(RANKS)]


@pytest.mark.parametrize(
    ("only", "own"),
    [
        ({"model": {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}}, "compute_s"),
        ({"data": {"delay_s": LATE_S}}, "input_s"),
        ({"model": {"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S}}, "optimizer_s"),
    ],
    ids=["slow rank", "slow loader", "slow optimizer"],
)
def test_one_late_rank(three_ranks, clean, tmp_path, only, own):
    found = run(three_ranks, tmp_path, only=only)
    assert_found(found, clean, waits_but(LATE_RANK, LATE_S, own))
    assert_accounted_for(tmp_path)


def test_an_optimizer_slow_everywhere_lets_nobody_wait(three_ranks, clean, tmp_path):
    found = run(three_ranks, tmp_path, model={"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S})
    assert_found(found, clean, [{"optimizer_s": LATE_S}] * RANKS)
    assert_accounted_for(tmp_path)


def test_jitter_has_its_spread_and_lets_the_others_wait(three_ranks, clean, tmp_path):
    spread_s, seed = 0.02, 5
    found = run(three_ranks, tmp_path, model={"jitter_s": spread_s, "seed": seed})
    by_rank = [lines(tmp_path, rank) for rank in range(RANKS)]
    drawn = [
        [spread_s * np.random.default_rng([seed, rank, line["step"]]).standard_normal() for line in each]
        for rank, each in enumerate(by_rank)
    ]
    latest = [max(step) for step in zip(*drawn, strict=True)]
    for rank, each in enumerate(by_rank):
        computed = [line["compute_s"] for line in each]
        # the median of all slopes: single steps that another process delayed do not count
        assert stats.theilslopes(computed, drawn[rank]).slope == pytest.approx(1, rel=0.05)
        assert statistics.median(computed) - clean[rank]["compute_s"] == is_about(
            statistics.median(drawn[rank])
        )
        apart = [
            line["comm_wait_s"] - (late - own)
            for line, late, own in zip(each, latest, drawn[rank], strict=True)
        ]
        assert statistics.median(apart) == is_about(0)
        for name in set(CLASSES) - {"compute_s", "comm_wait_s"}:
            assert found[rank][name] == is_about(clean[rank][name]), name
    assert_accounted_for(tmp_path)


def test_a_blocking_checkpoint_slow_on_one_rank(three_ranks, tmp_path):
    slow_s, every = 0.4, 3
    saving = {"checkpoint": {"every_steps": every, "asynchronous": False}}
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    run(three_ranks, quick, **saving)
    run(three_ranks, slow, slow_write_s=slow_s, **saving)
    before, after = saved(quick, every), saved(slow, every)
    # what ranks agree on and write takes a while of its own, of which the processors make what they will
    assert_found(after, before, waits_but(LATE_RANK, slow_s, "checkpoint_s"), within_s=0.05 * slow_s)
    assert_found(medians(slow, RANKS), medians(quick, RANKS), [{}] * RANKS)
    assert_accounted_for(slow)


def saved(folder: Path, every: int) -> list[Classes]:
    """Medians by rank over the steps that begin with saving what the step before left."""
    ranks = [lines(folder, rank) for rank in range(RANKS)]
    return [medians_of([line for line in each if line["step"] % every == 1]) for each in ranks]


@pytest.mark.parametrize("buckets", [4, 1])
def test_communication_under_compute_is_reported_as_hidden(three_ranks, tmp_path, buckets):
    """A late rank keeps the others' buckets in flight, all the time from their first one to its last."""
    model, layers = STEP["model"], STEP["model"]["layers"]
    late = {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}
    sections = {
        "parallel": {"bucket_mb": model["layer_mb"] * layers / buckets},
        "telemetry": {"samples": 1},
        "train": {"steps": WARM_UP + LARGEST_SHARE},
    }
    run(three_ranks, tmp_path, model=late, **sections)
    hidden_s = model["backward_s"] * (1 - 1 / buckets)
    for rank in range(RANKS):
        samples = [
            CommSample.model_validate(line) for line in read_jsonl(RunDir(tmp_path).attempt(0).comm(rank))
        ]
        assert [len(sample.collectives) for sample in samples] == [buckets]
        clock = {line["step"]: line["comm_exposed_s"] for line in lines(tmp_path, rank)}
        for sample in samples:
            # under the profiler the late rank is later still; how late, the clock says of the same step
            assert sample.exposed_s == is_about(clock[sample.step])
            assert sample.collectives[-1].hidden_s == is_about(0)
            if rank != LATE_RANK:
                assert sample.hidden_s == is_about(hidden_s)
                assert sample.total_s == is_about(hidden_s + clock[sample.step])


@pytest.mark.parametrize("late_s", [0.0, LATE_S])
def test_three_methods_agree_on_exposed_communication(two_ranks, late_s):
    found = two_ranks.call(exposed_by_method, late_s)
    for rank, by_method in enumerate(found):
        ours = by_method["ddp_backward_tail"]
        assert ours > late_s or rank == LATE_RANK
        assert by_method["ddp_logger"] == pytest.approx(ours, abs=0.0005)
        assert by_method["no_communication"] == pytest.approx(ours, rel=0.1, abs=0.003)


def exposed_by_method(world: World, late_s: float) -> dict[str, float]:
    model = exposed.build(layers=4, layer_mb=1.0, forward_s=0.01, backward_s=0.02, late_s=late_s)
    with ahead():
        return exposed.compare(world, model, bucket_mb=1.0, rounds=20)
