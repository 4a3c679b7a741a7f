"""Measured steps are chosen once: the recorded warm-up, or the longer one of `report --warmup`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.read.frames import load
from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.read.steps import Steps, choose_measured
from analysis.step_statistics import step_statistics
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, read_jsonl, write_json, write_text
from tests.support.fake_runs import fake_run, fake_sweep, reshape


def slow_start(step: int) -> float:
    return 2.0 if step <= 40 else 1.0


def warmed(sweep: Path, warmup: int) -> Run:
    return load_runs([sweep], warmup=warmup)[0]


def test_a_longer_warm_up_is_proposed_and_left_out_only_as_asked(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(2,), repeats=1, all_ranks=True, communication_overhead_percent=10.0)
    run = sweep / "n2x1-r0"
    reshape(run, slow_start)
    table = load_runs([sweep])
    (statistics,) = step_statistics(table).values()
    assert (statistics.measured_steps, statistics.warmup) == (100, 40)
    recorded = warmed(sweep, 0).metrics
    assert recorded is not None
    assert recorded.measured_s == read_json(run / "metrics.json")["measured_s"]
    metrics = warmed(sweep, statistics.warmup).metrics
    assert metrics is not None
    later = [each for each in read_jsonl(run / "attempts/000/steps-00000.jsonl") if each["step"] > 40]
    later_s = np.array([each["step_s"] for each in later])
    assert (metrics.measured_steps, metrics.warmup_steps) == (70, 40)
    assert metrics.measured_s == pytest.approx(later_s.sum())
    assert metrics.samples_per_s == pytest.approx(16 * 70 / later_s.sum())
    assert metrics.composition["compute_s"] == pytest.approx(np.mean([each["compute_s"] for each in later]))
    assert metrics.step_time is not None
    assert metrics.step_time.p95_s == pytest.approx(np.percentile(later_s, 95))
    exposed_s = sum(each["comm_exposed_s"] for each in later)
    assert metrics.communication_overhead_percent == pytest.approx(100 * exposed_s / later_s.sum())
    (changed,) = step_statistics(load_runs([sweep], warmup=40)).values()
    assert (changed.measured_steps, changed.stationarity.verdict, changed.warmup) == (70, "stationary", 0)


def test_the_proposed_warm_up_counts_the_profiled_steps_in_it(tmp_path: Path) -> None:
    """Ten steps are profiled, so that thirty measured steps end at step 50."""
    sweep = fake_sweep(tmp_path, nodes=(1,), repeats=1, left_out=[(1, 10), (15, 24)], measured_steps=90)
    run = sweep / "n1x1-r0"
    metrics = read_json(run / "metrics.json")
    write_json(run / "metrics.json", metrics | {"measured_s": 0.9 * metrics["measured_s"]})
    reshape(run, lambda step: 2.0 if step <= 50 else 1.0)
    (statistics,) = step_statistics(load_runs([sweep])).values()
    assert statistics.warmup == 50


def test_a_recorded_warm_up_that_is_longer_stays(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,), repeats=1)
    assert warmed(sweep, 5).metrics == warmed(sweep, 0).metrics


def test_a_run_without_a_later_step_is_left_out_and_named(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "long")
    fake_run(tmp_path / "s" / "short", steps=40)
    table = load([tmp_path / "s"], warmup=50).set_index("run")
    assert table["included"].to_dict() == {"long": True, "short": False}
    assert table.loc["short", "note"] == "--warmup leaves none of its 30 measured steps"


@pytest.mark.parametrize(("warmup", "text"), [(110, "110 leaves no step: the longest"), (-1, "0 or greater")])
def test_a_warm_up_that_leaves_no_step_is_refused(tmp_path: Path, warmup: int, text: str) -> None:
    sweep = fake_sweep(tmp_path)
    with pytest.raises(ConfigError, match=text):
        load([sweep], warmup=warmup)


def test_an_aggregate_is_left_out_as_a_whole(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    records = list(read_jsonl(run.attempt(0).steps(0)))
    whole = {"first": 11, "last": 60, "steps": 50, "step_s": sum(each["step_s"] for each in records[10:60])}
    lines = [*records[:10], whole | {"start_s": None, "samples": 400, "bins": [[-232, 50]]}, *records[60:]]
    write_text(run.attempt(0).steps(0), "".join(f"{json.dumps(line)}\n" for line in lines))
    metrics = warmed(tmp_path / "s", 20).metrics
    assert metrics is not None
    assert metrics.measured_steps == 50


def test_the_series_is_that_of_the_lowest_measured_rank_in_order() -> None:
    rank, step, counts = np.array([1, 0, 0, 0]), np.array([1, 3, 1, 2]), np.array([1, 2, 1, 1])
    text = np.full(4, "", dtype=object)
    steps = Steps(
        np.zeros(4, np.int16), rank, step, counts, counts, {"step_s": np.array([9.0, 6.0, 1.0, 2.0])},
        text, text, np.ones(4, bool), np.array([True, True, False, True]),
    )  # fmt: skip
    assert steps.series_s == pytest.approx([2.0, 3.0, 3.0])
    assert choose_measured(steps, None, [(1, 9)], 0).series_s.size == 0
