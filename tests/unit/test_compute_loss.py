"""Causes of lost compute: each is found from its evidence, and none is made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.load import load_runs
from analysis.read.steps import Steps
from analysis.report.sections import pop
from analysis.results.compute_loss import (
    ComputeState,
    compute_causes,
    compute_state,
    explain,
    rank_compute_s,
    slow_in_compute,
)
from analysis.results.culprits import Diagnosis, diagnose
from analysis.results.curves import scaling_curves
from analysis.study import Study
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run, with_metrics
from tests.support.straggler_records import delays, generate, seconds_of, steps_of
from tests.unit.test_stragglers_section import STEPS, write_run

BASE = ComputeState(1.0, 1, 8, hosts=1, processors=2, on_cpu=True)


def names(point: ComputeState, base: ComputeState = BASE, work: float = 1.0) -> list[tuple[str, ...]]:
    return [tuple(cause.evidence) for cause in explain(point, base, work)]


def test_ranks_that_share_processors_are_the_cause_on_one_machine() -> None:
    point = ComputeState(1.6, 4, 8, hosts=1, processors=2, on_cpu=True, oversubscribed=True)
    assert names(point) == [("shared_processors",)]
    (cause,) = explain(point, BASE, 1.0)
    assert cause.evidence["shared_processors"] == {"own": 0.5, "before": 2.0}


def test_processors_are_no_cause_where_each_rank_has_as_many() -> None:
    assert names(ComputeState(1.6, 2, 8, hosts=2, processors=2, on_cpu=True, threads=4)) == [("unknown",)]
    gpu = ComputeState(1.0, 1, 8, hosts=1, processors=16)
    assert names(ComputeState(1.6, 8, 8, hosts=1, processors=16), gpu) == [("unknown",)]


def test_processors_are_no_cause_where_all_threads_have_their_own() -> None:
    found = ComputeState(1.6, 2, 8, hosts=1, processors=2, on_cpu=True)
    assert names(found) == [("unknown",)]
    assert names(replace(found, threads=2)) == [("shared_processors",)]


def test_a_named_straggler_of_two_is_the_first_cause() -> None:
    ranks = np.array([1.0, 1.8])
    point = ComputeState(1.4, 2, 8, rank_compute_s=ranks, stragglers={1: "rank 1 on c01"})
    (cause,) = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert cause.evidence == {
        "slow_ranks": {"name": "rank 1 on c01", "beyond": pytest.approx(0.8), "others": []}
    }


def test_oversubscription_is_the_cause_where_hosts_are_not_known() -> None:
    base = ComputeState(1.0, 1, 8)
    (cause,) = explain(ComputeState(1.6, 4, 8, oversubscribed=True), base, 1.0)
    assert cause.evidence == {"shared_processors": {"own": None}}
    both = replace(base, oversubscribed=True)
    assert names(ComputeState(1.6, 1, 8, oversubscribed=True), both) == [("unknown",)]
    assert names(ComputeState(1.6, 4, 8, oversubscribed=True), both) == [("shared_processors",)]
    known = ComputeState(1.6, 4, 8, hosts=1, processors=2, on_cpu=True)
    assert names(known, base) == [("unknown",)], "hosts of the base are not known"


def test_a_smaller_local_batch_is_a_candidate_in_strong_scaling() -> None:
    point = ComputeState(0.4, 4, 2, hosts=4, processors=2, on_cpu=True)
    assert names(point, work=0.25) == [("smaller_batch",)]
    shared = ComputeState(0.4, 4, 2, hosts=1, processors=2, on_cpu=True)
    (cause,) = explain(shared, BASE, 0.25)
    assert cause.evidence == {
        "shared_processors": {"own": 0.5, "before": 2.0},
        "smaller_batch": {"own": 2, "before": 8},
    }


def test_other_work_on_the_nodes_is_the_only_candidate() -> None:
    shared = ComputeState(1.6, 4, 8, hosts=1, processors=2, on_cpu=True, disturbed="other runs")
    (cause,) = explain(shared, BASE, 1.0)
    assert list(cause.evidence) == ["other_work"]
    slow = replace(shared, rank_compute_s=np.array([1.0, 1.0, 1.0, 3.4]), stragglers={3: "rank 3"})
    assert list(explain(slow, BASE, 1.0)[0].evidence) == ["slow_ranks"]


def test_one_slow_rank_of_eight_is_named_with_its_size() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8, 1.0, 1.0, 1.0, 1.0])
    (cause,) = explain(ComputeState(ranks.mean(), 8, 8, rank_compute_s=ranks), ComputeState(1.0, 1, 8), 1.0)
    assert cause.seconds == pytest.approx(0.1)
    assert cause.evidence == {"slow_ranks": {"name": "rank 3", "beyond": pytest.approx(0.8), "others": []}}


def test_the_slow_one_of_three_ranks_is_found_and_no_rank_without_compute() -> None:
    base = ComputeState(1.0, 1, 8)
    three = ComputeState(1.2, 3, 8, rank_compute_s=np.array([1.0, 1.0, 1.6]))
    assert names(three, base) == [("slow_ranks",)]
    idle = ComputeState(1.2, 3, 8, rank_compute_s=np.array([0.0, 0.0, 3.6]))
    assert names(idle, base) == [("unknown",)]


def test_ranks_as_uneven_as_those_of_the_base_are_not_blamed() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8])
    base = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks)
    assert names(ComputeState(2 * ranks.mean(), 4, 8, rank_compute_s=2 * ranks), base) == [("unknown",)]


def test_causes_are_in_the_order_of_their_seconds_and_named_ranks_come_first() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8])
    point, base = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks), ComputeState(0.5, 1, 8)
    assert names(point, base) == [("unknown",), ("slow_ranks",)]
    assert names(replace(point, stragglers={3: "rank 3"}), base) == [("slow_ranks",), ("unknown",)]


def test_the_slowest_of_several_named_stragglers_has_its_size_and_the_others_their_names() -> None:
    ranks = np.array([1.0, 1.5, 2.0, 1.0, 1.2])
    point = ComputeState(ranks.mean(), 5, 8, rank_compute_s=ranks, stragglers={1: "rank 1", 2: "rank 2"})
    first, *_ = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert first.evidence == {
        "slow_ranks": {"name": "rank 2", "beyond": pytest.approx(1.0), "others": ["rank 1"]}
    }
    three = replace(point, stragglers={1: "rank 1", 2: "rank 2", 4: "rank 4"})
    first, *_ = explain(three, ComputeState(1.0, 1, 8), 1.0)
    assert first.evidence["slow_ranks"]["others"] == ["rank 1", "rank 4"]


def test_lower_clocks_are_named_with_their_size_and_the_rest_is_unknown() -> None:
    point, base = ComputeState(1.5, 2, 8, clock=0.66), ComputeState(1.0, 1, 8, clock=0.9)
    assert names(point, base) == [("lower_clocks",), ("unknown",)]
    lower, _ = explain(point, base, 1.0)
    assert lower.seconds == pytest.approx(0.5 * math.log(0.9 / 0.66) / math.log(1.5))
    assert lower.evidence["lower_clocks"] == {"clock": 0.66, "before": 0.9}
    assert (
        names(point, replace(base, clock=None)) == names(replace(point, clock=None), base) == [("unknown",)]
    )


def test_a_cause_larger_than_the_loss_stands_beside_a_gain() -> None:
    """Rank 1 needs 2.0 s where the others, faster than the base, need 0.9 s."""
    ranks = np.array([0.9, 2.0, 0.9, 0.9])
    point = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks, stragglers={1: "node c01"})
    slow, gain = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert slow.seconds > point.compute_s - 1.0 > 0 > gain.seconds
    assert (list(slow.evidence), list(gain.evidence)) == (["slow_ranks"], ["unknown"])


def test_ranks_that_differ_as_little_as_at_the_base_are_not_blamed() -> None:
    ranks = np.array([1.5, 1.52, 1.49, 1.51])
    base = ComputeState(1.0, 1, 8, rank_compute_s=np.array([1.0]))
    assert names(ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks), base) == [("unknown",)]


def test_compute_of_microseconds_has_causes() -> None:
    assert names(ComputeState(1.6e-6, 2, 8), ComputeState(1e-6, 1, 8)) == [("unknown",)]


def test_no_cause_without_a_loss() -> None:
    assert explain(ComputeState(0.9, 2, 8), ComputeState(1.0, 1, 8), 1.0) == []
    assert explain(ComputeState(1.0, 2, 8), ComputeState(1.0, 1, 8), 1.0) == []
    assert explain(ComputeState(1.0, 2, 8), ComputeState(0.0, 1, 8), 1.0) == [], "the base has no compute"


@given(
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    st.floats(0.1, 4),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.floats(0.3, 1),
    st.floats(0.3, 1),
)
def test_causes_sum_to_the_loss(
    actual_s: float, base_s: float, work: float, ranks: list[float], clock: float, base_clock: float
) -> None:
    shape = np.array(ranks) / np.mean(ranks) * actual_s
    point = ComputeState(actual_s, len(ranks), 4, rank_compute_s=shape, clock=clock)
    causes = explain(point, ComputeState(base_s, 1, 8, clock=base_clock), work)
    loss_s = actual_s - work * base_s
    assert sum(cause.seconds for cause in causes) == pytest.approx(max(loss_s, 0.0), abs=1e-8 * actual_s)


def study_of(sweep: Path) -> Study:
    runs = load_runs([sweep])
    return Study(runs, scaling_curves(runs))


def state_of(study: Study) -> ComputeState:
    return compute_state(study, study.curves[0], study.curves[0].points[-1])


def with_steps(study: Study, change: Callable[[Steps], Steps]) -> Study:
    runs = [replace(run, steps=change(run.steps)) for run in study.runs]
    return Study(runs, scaling_curves(runs))


def with_records(run: RunDir, attempt: int, ranks: int) -> None:
    source = run.attempt(attempt).steps(0).read_text()
    for rank in range(1, ranks):
        write_text(run.attempt(attempt).steps(rank), source)


def test_hosts_are_those_of_all_ranks_of_one_attempt(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "n2", nodes=2, hosts=["c00", "c01"])
    assert state_of(study_of(tmp_path / "s")).hosts is None  # records of rank 0 alone
    with_records(run, 0, 2)
    study = study_of(tmp_path / "s")
    assert state_of(study).hosts == 2
    first = study.runs[0].steps
    twice = np.r_[: first.size, : first.size]
    resumed = np.arange(twice.size) >= first.size
    both = first.chosen(twice)
    both = replace(both, attempt=resumed.astype(np.int16), host=both.host + np.where(resumed, "b", ""))
    assert state_of(with_steps(study, lambda _: both)).hosts == 2


@pytest.mark.parametrize(("strategy", "named"), [("ddp", {1: "rank 1 on c01"}), ("pipeline", {})])
def test_a_straggler_is_named_but_for_stages_of_a_pipeline(
    tmp_path: Path, strategy: str, named: dict[int, Any]
) -> None:
    fake_run(tmp_path / "s" / "n1", mean_s=0.15, overrides={"strategy": strategy})
    write_run(tmp_path / "s" / "n4", delays(4, STEPS, slow=[1], slow_s=0.05))
    runs = with_metrics(load_runs([tmp_path / "s"]), strategy=strategy)
    study = Study(runs, scaling_curves(runs))
    state = state_of(study)
    assert state.stragglers == named
    assert (state.rank_compute_s is None) == (strategy == "pipeline")
    assert (pop.build(study) is None) == (strategy == "pipeline")


def test_an_emulated_wait_shares_no_processors(tmp_path: Path) -> None:
    for nodes in (2, 4):
        seconds = {"compute_s": 0.05 * nodes, "other_s": 0.01}
        overrides = {"composition": seconds, "oversubscribed": True}
        run = fake_run(
            tmp_path / "s" / f"n{nodes}",
            nodes=nodes,
            mean_s=0.05 * nodes + 0.01,
            overrides=overrides,
            hosts=["c00"] * nodes,
        )
        with_records(run, 0, nodes)
    study = study_of(tmp_path / "s")
    study.__dict__["overlaps"] = []
    (curve,) = study.curves
    (real,) = compute_causes(study, curve, curve.points[-1])
    (emulated,) = compute_causes(study, replace(curve, emulated=True), curve.points[-1])
    assert [*real.evidence, *emulated.evidence] == ["shared_processors", "unknown"]
    base_s, actual_s = (point.composition["compute_s"] for point in curve.points)
    assert real.seconds == pytest.approx(actual_s - base_s)
    assert compute_causes(study, curve, curve.points[0]) == [], "the base itself"


def test_the_state_has_processors_threads_and_clocks_of_the_records(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "n1")
    record = read_json(run.run_json)
    resources = record["config"]["resources"] | {"threads_per_rank": 3}
    write_json(run.run_json, record | {"config": record["config"] | {"resources": resources}})
    runs = load_runs([tmp_path / "s"])
    gpu = SimpleNamespace(sm_clock_ratio_mean=0.8)
    runs = with_metrics(runs, cpu_count=16, device="cpu", oversubscribed=False, gpu=gpu)
    state = state_of(Study(runs, scaling_curves(runs)))
    assert (state.processors, state.threads, state.clock) == (16, 3, 0.8)
    assert (state.on_cpu, state.oversubscribed) == (True, False)
    resources.pop("threads_per_rank")
    write_json(run.run_json, record | {"config": record["config"] | {"resources": resources}})
    runs = with_metrics(
        load_runs([tmp_path / "s"]), cpu_count=None, device="NVIDIA H100", oversubscribed=False
    )
    state = state_of(Study(runs, scaling_curves(runs)))
    assert (state.processors, state.threads, state.clock, state.on_cpu) == (None, 1, None, False)
    assert not state.oversubscribed


def test_the_state_of_a_size_has_the_measured_steps_of_its_own_runs(tmp_path: Path) -> None:
    for nodes in (1, 2):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes)
    study = study_of(tmp_path / "s")

    def slow_warmup(steps: Steps) -> Steps:
        assert not steps.measured.all()
        compute_s = np.where(steps.measured, steps.counts * 0.05, 9.0)
        return replace(steps, seconds={**steps.seconds, "compute_s": compute_s})

    study = with_steps(study, slow_warmup)
    (curve,) = study.curves
    point = curve.points[0]
    state = compute_state(study, curve, point)
    assert state.hosts == 1
    assert state.rank_compute_s == pytest.approx([0.05])
    unmeasured = replace(point, composition=point.composition | {"compute_s": None})
    assert compute_state(study, curve, unmeasured).compute_s == 0.0
    state = state_of(with_steps(study, lambda steps: steps.chosen(~steps.measured)))
    assert (state.hosts, state.rank_compute_s) == (None, None)


def test_a_rank_without_a_known_host_hides_the_number_of_hosts(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", hosts=["c00"])
    study = study_of(tmp_path / "s")
    assert state_of(study).hosts == 1
    unknown = with_steps(study, lambda steps: replace(steps, host=np.full(steps.size, "", dtype=object)))
    assert state_of(unknown).hosts is None


def test_compute_of_a_rank_is_that_of_a_step_and_needs_all_ranks() -> None:
    rows = {"rank": [0, 0, 1], "compute_s": [0.2, 0.6, 0.3], "steps": [1, 3, 1]}
    steps = pd.DataFrame(rows).assign(attempt=0, step=[1, 2, 1], kept=True, measured=True)
    found = rank_compute_s([steps_of(steps)], 2)
    assert found is not None
    assert list(found) == pytest.approx([0.2, 0.3])
    assert rank_compute_s([steps_of(steps)], 3) is None
    assert rank_compute_s([steps_of(steps.assign(steps=[1, 3, 0]))], 2) is None


def repeat_of(seed: int, slow: dict[str, list[int]], slow_s: float = 0.05) -> Diagnosis:
    """60 steps of eight ranks, two a node; `slow`: ranks that are slow, by the node they are on."""
    every = [rank for ranks in slow.values() for rank in ranks]
    rows = generate(delays(8, 60, slow=every, slow_s=slow_s, jitter_s=0.002, seed=seed), ranks_per_node=2)
    for host, ranks in slow.items():
        rows.loc[rows["rank"] // 2 == ranks[0] // 2, "host"] = host
    found = seconds_of(rows)
    assert found is not None
    return diagnose(found)


def test_all_ranks_of_a_slow_node_are_one_culprit_of_the_size_of_their_delay() -> None:
    repeats = [repeat_of(seed, {"n2": [4, 5]}) for seed in range(3)]
    assert slow_in_compute(repeats) == {4: "node n2", 5: "node n2"}
    for each in repeats:
        (culprit,) = each.culprits
        assert culprit.excess_s.value == pytest.approx(0.05, rel=0.05)


def test_two_slow_nodes_are_two_culprits() -> None:
    repeats = [repeat_of(seed, {"n1": [2, 3], "n2": [4, 5]}) for seed in range(3)]
    assert slow_in_compute(repeats) == {2: "node n1", 3: "node n1", 4: "node n2", 5: "node n2"}


def test_a_slow_node_with_other_ranks_in_each_repeat_has_no_slow_rank() -> None:
    """Its name is the same in all repeats. Each rank is slow in one of them alone."""
    repeats = [repeat_of(seed, {"n2": [2 * seed, 2 * seed + 1]}) for seed in range(3)]
    assert [each.culprits[0].name for each in repeats] == ["node n2"] * 3
    assert slow_in_compute(repeats) == {}


def test_a_rank_that_is_slow_on_several_nodes_has_its_number_as_name() -> None:
    assert slow_in_compute([repeat_of(seed, {f"n{seed}": [4]}) for seed in range(3)]) == {4: "rank 4"}


def test_a_rank_counts_under_its_own_name_and_under_that_of_its_node() -> None:
    repeats = [repeat_of(seed, {"n2": [4, 5] if seed < 2 else [4]}) for seed in range(4)]
    assert slow_in_compute(repeats) == {4: "node n2"}
