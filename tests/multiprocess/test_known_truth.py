"""Known truth: what is made slow is found on its rank, in its class, in its size, as waiting on its peers, and
nowhere else. The ranks wait where others compute, so two processors are enough for all of them."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from disttrain.records import CLASSES
from tests.multiprocess.test_train import make_config
from tests.support.ranks import Ranks
from tests.support.truth import Classes, is_about, lines, medians, medians_of, other_share, run_each

pytestmark = pytest.mark.multiprocess

STEP = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.03, "forward_s": 0.04, "backward_s": 0.08,
              "optimizer_s": 0.01},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 2048, "valid_samples": 0},
    "train": {"steps": 28, "local_batch_size": 4, "log_every": 10},
    "telemetry": {"warmup_steps": 3, "sinks": [], "samples": 0},
    "parallel": {"bucket_mb": 0.03},
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
    found = run(three_ranks, folder)
    show(found, folder)
    return found


def show(found: list[Classes], folder: Path) -> None:
    for rank, classes in enumerate(found):
        values = " ".join(f"{name} {1e3 * value:.2f}" for name, value in classes.items())
        print(f"rank {rank}: {values} | other {100 * other_share(folder, rank):.2f} %")


def assert_found(found: list[Classes], clean: list[Classes], expected: list[dict[str, float]]) -> None:
    """Each rank has more of each class by what is expected, by nothing where nothing is."""
    for rank, classes in enumerate(found):
        more = {name: classes[name] - clean[rank][name] for name in CLASSES}
        assert more == {name: is_about(expected[rank].get(name, 0.0)) for name in CLASSES}, f"rank {rank}"


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
    show(found, tmp_path)
    assert_found(found, clean, waits_but(LATE_RANK, LATE_S, own))
    assert_accounted_for(tmp_path)


def test_an_optimizer_slow_everywhere_lets_nobody_wait(three_ranks, clean, tmp_path):
    found = run(three_ranks, tmp_path, model={"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S})
    show(found, tmp_path)
    assert_found(found, clean, [{"optimizer_s": LATE_S}] * RANKS)
    assert_accounted_for(tmp_path)


def test_jitter_has_its_spread_and_lets_the_others_wait(three_ranks, clean, tmp_path):
    spread_s, seed = 0.01, 5
    found = run(three_ranks, tmp_path, model={"jitter_s": spread_s, "seed": seed})
    show(found, tmp_path)
    assert_accounted_for(tmp_path)
    by_rank = [lines(tmp_path, rank) for rank in range(RANKS)]
    drawn = [
        [np.random.default_rng([seed, rank, line["step"]]).standard_normal() * spread_s for line in by_rank[rank]]
        for rank in range(RANKS)
    ]
    for rank in range(RANKS):
        extra = [line["compute_s"] - clean[rank]["compute_s"] for line in by_rank[rank]]
        assert statistics.stdev(extra) == pytest.approx(statistics.stdev(drawn[rank]), rel=0.05)
        latest = [max(step) for step in zip(*drawn, strict=True)]
        waits = [late - own for late, own in zip(latest, drawn[rank], strict=True)]
        assert statistics.mean(line["comm_wait_s"] for line in by_rank[rank]) == is_about(statistics.mean(waits))
        beside = set(CLASSES) - {"compute_s", "comm_wait_s"}
        for name in beside:
            assert found[rank][name] == pytest.approx(clean[rank][name], abs=0.002), name


def test_a_blocking_checkpoint_slow_on_one_rank(three_ranks, tmp_path):
    slow_s, every = 0.2, 5
    saving = {"checkpoint": {"every_steps": every, "asynchronous": False}}
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    run(three_ranks, quick, **saving)
    run(three_ranks, slow, slow_write_s=slow_s, **saving)
    before, after = saved(quick, every), saved(slow, every)
    assert_found(after, before, waits_but(LATE_RANK, slow_s, "checkpoint_s"))
    assert_found(medians(slow, RANKS), medians(quick, RANKS), [{}] * RANKS)
    assert_accounted_for(slow)


def saved(folder: Path, every: int) -> list[Classes]:
    """Medians by rank over the steps that begin with saving what the step before left."""
    found = [medians_of([line for line in lines(folder, rank) if line["step"] % every == 1]) for rank in range(RANKS)]
    show(found, folder)
    return found
