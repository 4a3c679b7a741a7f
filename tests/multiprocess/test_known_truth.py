"""Known truth: what is made slow is found on its rank, in its class, in its size, on its peers as waiting,
and nowhere else."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks import exposed
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.profile import ProfileRecord
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.telemetry.collective_stats import LARGEST_SHARE
from tests.support import truth
from tests.support.ranks import Ranks
from tests.support.truth import LATE_RANK, LATE_S, STEP, TOLERANCE, TOLERANCE_S, Classes, is_about

pytestmark = [pytest.mark.multiprocess, truth.MEASURES]

RANKS = 3


def run(ranks: Ranks, folder: Path, **sections: dict) -> Path:
    ranks.call(truth.run_each, truth.config(ranks.size, **sections), folder)
    return folder


@pytest.fixture(scope="module")
def clean(three_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> list[Classes]:
    """Medians by rank of a run in which nothing is slow."""
    return truth.medians(run(three_ranks, tmp_path_factory.mktemp("clean")), RANKS)


@pytest.mark.parametrize("late", truth.LATE.values(), ids=truth.LATE)
def test_one_late_rank(three_ranks, clean, tmp_path, late):
    truth.assert_one_is_late(run(three_ranks, tmp_path, **late.sections), clean, late)


def test_an_optimizer_slow_everywhere_lets_nobody_wait(three_ranks, clean, tmp_path):
    run(three_ranks, tmp_path, model={"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S})
    truth.assert_found(truth.medians(tmp_path, RANKS), clean, [{"optimizer_s": LATE_S}] * RANKS)
    truth.assert_accounted_for(tmp_path, RANKS)


def test_jitter_has_its_spread_and_lets_the_others_wait(three_ranks, clean, tmp_path):
    truth.assert_jitter(run(three_ranks, tmp_path, **truth.JITTER), clean)


def test_a_blocking_checkpoint_slow_on_one_rank(three_ranks, tmp_path):
    quick = run(three_ranks, tmp_path / "quick", **truth.SAVING)
    slow = run(three_ranks, tmp_path / "slow", **truth.SLOW_SAVING)
    truth.assert_saving_is_slow(slow, quick, RANKS)


@pytest.mark.parametrize("buckets", [4, 1])
def test_communication_under_compute_is_reported_as_hidden(three_ranks, tmp_path, buckets):
    """A late rank keeps the others' buckets in flight, all the time from their first one to its last."""
    model, layers = STEP["model"], STEP["model"]["layers"]
    sections = {
        "parallel": {"bucket_mb": model["layer_mb"] * layers / buckets},
        "telemetry": {"profiled_steps": 1},
        "train": {"steps": truth.WARM_UP + LARGEST_SHARE},
    }
    run(three_ranks, tmp_path, **truth.LATE["slow rank"].sections, **sections)
    hidden_s = model["backward_s"] * (1 - 1 / buckets)
    for rank in range(RANKS):
        samples = [
            CommSample.model_validate(line) for line in read_jsonl(RunDir(tmp_path).attempt(0).comm(rank))
        ]
        assert [len(sample.collectives) for sample in samples] == [buckets]
        clock = {line["step"]: line["comm_exposed_s"] for line in truth.lines(tmp_path, rank)}
        for sample in samples:
            # under the profiler the late rank is later still; how late, the clock says of the same step
            assert sample.exposed_s == is_about(clock[sample.step])
            assert sample.collectives[-1].hidden_s == is_about(0)
            if rank != LATE_RANK:
                assert sample.hidden_s == is_about(hidden_s)
                assert sample.total_s == is_about(hidden_s + clock[sample.step])


def test_the_profiler_and_the_clock_agree_on_traced_steps(three_ranks, tmp_path):
    """Layers wait within operators, so both see the same, and what they see is known."""
    late = {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}
    run(three_ranks, tmp_path, model=late, profile={"steps": [6, 14], "ranks": [0, 1, 2]})
    for rank in range(RANKS):
        record = ProfileRecord.model_validate(read_json(RunDir(tmp_path).attempt(0).profile(rank)))
        known = {
            "compute_s": STEP["model"]["forward_s"] + STEP["model"]["backward_s"],
            "exposed_s": LATE_S,
        }
        if rank == LATE_RANK:
            known = {"compute_s": known["compute_s"] + LATE_S, "exposed_s": 0.0}
        for name, seconds in known.items():
            seen = [(getattr(s.profiler, name), getattr(s.difference, name)) for s in record.steps]
            figure, difference = map(statistics.median, zip(*seen, strict=True))
            assert figure == is_about(seconds), name
            assert difference == pytest.approx(0, abs=max(TOLERANCE_S, TOLERANCE * seconds)), name


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
    with truth.ahead():
        return exposed.compare(world, model, bucket_mb=1.0, rounds=20)
