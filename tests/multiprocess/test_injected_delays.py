"""A delay injected into a run is found on its rank and in its phase, and on the other ranks as waiting.

The tests assert orders of magnitude; `benchmarks/truth.py` measures accuracy.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks import exposed
from benchmarks.truth import by_profiler
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled.profiled_steps import LARGEST_SHARE
from tests.support import injected_delays as delays
from tests.support.injected_delays import LATE_RANK, LATE_S, STEP, Phases, assert_about, assert_added
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

RANKS = 3


def run(ranks: Ranks, folder: Path, **sections: dict) -> Path:
    ranks.call(delays.train_rank, delays.config(ranks.size, **sections), folder)
    return folder


def metrics_of(folder: Path) -> Metrics:
    return Metrics.model_validate(read_json(folder / "metrics.json"))


CLEAN: list[Phases] = [delays.CONFIGURED] * RANKS
"""Seconds by rank of a run without delays. A measured run would carry its disturbances into every test."""


@pytest.mark.parametrize("delay", delays.DELAYS.values(), ids=delays.DELAYS)
def test_one_late_rank(three_ranks, tmp_path, delay):
    found = delays.medians(run(three_ranks, tmp_path, **delay.sections), RANKS)
    assert_added(found, CLEAN, delays.one_late(RANKS, LATE_S, delay.phase), LATE_S)
    assert max(delays.other_share(tmp_path, rank) for rank in range(RANKS)) < 0.2


@pytest.mark.parametrize("delay", delays.DELAYS.values(), ids=delays.DELAYS)
def test_one_late_rank_of_a_sharded_model(three_ranks, tmp_path, delay):
    run(three_ranks, tmp_path, parallel={"strategy": "fsdp"}, **delay.sections)
    assert_added(delays.medians(tmp_path, RANKS), CLEAN, delays.one_late(RANKS, LATE_S, delay.phase), LATE_S)
    assert metrics_of(tmp_path).comm_method == "fsdp_custom_collectives"


@pytest.mark.parametrize("delay", delays.DELAYS.values(), ids=delays.DELAYS)
def test_one_late_rank_of_a_model_sharded_in_pairs(four_ranks, tmp_path, delay):
    """The other rank of its pair waits for the shard, and the other pair for the sum of the gradients."""
    run(four_ranks, tmp_path, parallel={"strategy": "hsdp", "hsdp": {"shard_size": 2}}, **delay.sections)
    expected = delays.one_late(4, LATE_S, delay.phase)
    assert_added(delays.medians(tmp_path, 4), [delays.CONFIGURED] * 4, expected, LATE_S)
    assert metrics_of(tmp_path).comm_method == "fsdp_custom_collectives"


def test_ranks_wait_for_rank_0_to_broadcast_buffers(three_ranks, tmp_path):
    """DDP broadcasts buffers at the begin of the forward pass; a loader delays rank 0 before it."""
    run(three_ranks, tmp_path, **delays.BUFFERS)
    expected = delays.one_late(RANKS, LATE_S, "input_s", late_rank=0)
    assert_added(delays.medians(tmp_path, RANKS), CLEAN, expected, LATE_S)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_optimizer_slow_on_every_rank_makes_no_rank_wait(three_ranks, tmp_path, strategy):
    slow = {"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S}
    run(three_ranks, tmp_path, model=slow, parallel={"strategy": strategy})
    assert_added(delays.medians(tmp_path, RANKS), CLEAN, [{"optimizer_s": LATE_S}] * RANKS, LATE_S)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_jitter_is_compute_and_each_rank_waits_for_the_largest(three_ranks, tmp_path, strategy):
    steps = {"steps": delays.WARM_UP + 20}
    run(three_ranks, tmp_path, train=steps, parallel={"strategy": strategy}, **delays.JITTER)
    by_rank = [delays.measured_steps(tmp_path, rank) for rank in range(RANKS)]
    jitter = [delays.jitter_of(each, rank) for rank, each in enumerate(by_rank)]
    largest = [max(step) for step in zip(*jitter, strict=True)]
    for own, each in zip(jitter, by_rank, strict=True):
        behind = [most - mine for most, mine in zip(largest, own, strict=True)]
        assert 0.5 < delays.slope([line["compute_s"] for line in each], own) < 2
        assert 0.5 < delays.slope([line["comm_wait_s"] for line in each], behind) < 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_blocking_checkpoint_slow_on_one_rank(three_ranks, tmp_path, strategy):
    """Each rank of a sharded model writes its own shards; the others wait in the next step."""
    parallel = {"strategy": strategy}
    quick = run(three_ranks, tmp_path / "quick", parallel=parallel, **delays.SAVING)
    slow = run(three_ranks, tmp_path / "slow", parallel=parallel, **delays.SLOW_SAVING)
    saving_s = delays.SLOW_WRITE_S
    expected = delays.one_late(RANKS, saving_s, "checkpoint_s")
    found, base = (delays.medians_after_saving(folder, RANKS) for folder in (slow, quick))
    assert_added(found, base, expected, saving_s)
    assert_added(delays.medians(slow, RANKS), delays.medians(quick, RANKS), [{}] * RANKS, saving_s)


def test_a_slow_disk_delays_no_step(three_ranks, tmp_path):
    """Rank 0 writes all its files in each step, and each write takes as long as the other tests' delay."""
    made = delays.config(RANKS, telemetry={"flush_every_s": 1e-3})
    three_ranks.call(delays.train_on_slow_disk, made, tmp_path, 0)
    assert_added(delays.medians(tmp_path, RANKS), CLEAN, [{}] * RANKS, LATE_S)


@pytest.mark.parametrize("buckets", [4, 1])
def test_communication_under_compute_is_reported_as_hidden(three_ranks, tmp_path, buckets):
    """A late rank keeps the buckets of its peers in flight from their first bucket to their last."""
    model, layers = STEP["model"], STEP["model"]["layers"]
    sections = {
        "parallel": {"ddp": {"bucket_mb": model["layer_mb"] * layers / buckets}},
        "telemetry": {"profiled_steps": 1},
        "train": {"steps": delays.WARM_UP + LARGEST_SHARE},
    }
    run(three_ranks, tmp_path, **delays.DELAYS["slow rank"].sections, **sections)
    hidden_s = model["backward_s"] * (1 - 1 / buckets)
    for rank in range(RANKS):
        [sample] = map(CommSample.model_validate, read_jsonl(RunDir(tmp_path).attempt(0).comm(rank)))
        assert len(sample.collectives) == buckets
        assert sample.hidden_s + sample.exposed_s == pytest.approx(sample.total_s)
        assert sample.collectives[-1].hidden_s < 0.5 * LATE_S
        if rank != LATE_RANK:
            assert sample.exposed_s > 0.5 * LATE_S
            if hidden_s:
                assert_about(sample.hidden_s, hidden_s, f"hidden seconds of rank {rank}")
            else:
                assert sample.hidden_s < 0.5 * LATE_S


@pytest.mark.parametrize(
    ("group", "sharded"), [("three_ranks", delays.FSDP), ("four_ranks", delays.HSDP)], ids=["fsdp", "hsdp"]
)
def test_no_sharded_collective_is_hidden_on_a_cpu(request, tmp_path, group, sharded):
    """FSDP2 waits for each collective on a CPU, also for one that it prefetches."""
    ranks = request.getfixturevalue(group)
    sections = {
        "parallel": {**sharded["parallel"], **delays.PREFETCH["parallel"]},
        "telemetry": {"profiled_steps": 1},
        "train": {"steps": delays.WARM_UP + LARGEST_SHARE},
    }
    run(ranks, tmp_path, **delays.DELAYS["slow rank"].sections, **sections)
    layers = STEP["model"]["layers"]
    for rank in range(ranks.size):
        [sample] = map(CommSample.model_validate, read_jsonl(RunDir(tmp_path).attempt(0).comm(rank)))
        late = rank == LATE_RANK
        assert [each.kind for each in sample.collectives].count("all_gather") == 2 * layers
        assert sample.hidden_s < 0.01 * sample.compute_s
        assert sample.hidden_s + sample.exposed_s == pytest.approx(sample.total_s)
        assert_about(sample.compute_s, delays.CONFIGURED["compute_s"] + late * LATE_S, f"compute of {rank}")
        if late:
            assert sample.exposed_s < 0.5 * LATE_S
        else:
            assert_about(sample.exposed_s, LATE_S, f"exposed seconds of rank {rank}")


def test_the_profiler_and_the_clock_agree_on_traced_steps(three_ranks, tmp_path):
    """Layers wait within operators, so the profiler and the clock both see the delay."""
    sections = delays.DELAYS["slow rank"].sections
    run(three_ranks, tmp_path, **sections, profile={"steps": [5, 9], "ranks": [0, 1, 2]})
    for rank in range(RANKS):
        steps = by_profiler(RunDir(tmp_path).attempt(0), rank)
        lines = [line for line in delays.measured_steps(tmp_path, rank) if 5 <= line["step"] <= 9]
        clock = [{"compute_s": line["compute_s"], "exposed_s": line["comm_exposed_s"]} for line in lines]
        late = rank == LATE_RANK
        compute_s = STEP["model"]["forward_s"] + STEP["model"]["backward_s"] + late * LATE_S
        for name, seconds in {"compute_s": compute_s, "exposed_s": 0.0 if late else LATE_S}.items():
            figures = statistics.median(step[name] for step in steps)
            difference = statistics.median(c[name] - p[name] for c, p in zip(clock, steps, strict=True))
            if seconds:
                assert_about(figures, seconds, f"{name} of rank {rank}")
            else:
                assert figures < 0.5 * LATE_S
            assert abs(difference) < 0.5 * LATE_S, name


def test_three_methods_find_exposed_communication(two_ranks):
    found = two_ranks.call(exposed_by_method)[1 - LATE_RANK]
    for method, seconds in found.items():
        assert_about(seconds, LATE_S, method)


def exposed_by_method(world: World) -> dict[str, float]:
    model = exposed.build(layers=4, layer_mb=0.25, forward_s=0.01, backward_s=0.02, late_s=LATE_S)
    with delays.real_time_priority():
        return exposed.median_exposed_s(world, model, bucket_mb=0.25, rounds=8)
