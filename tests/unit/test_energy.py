"""Energy and carbon per sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.costs.energy import (
    device_watts,
    energy_per_sample,
    grams_per_sample,
    joules_per_sample,
    mean_watts,
)
from analysis.read.load import read_metrics
from disttrain.records.hardware import GpuSummary
from disttrain.records.metrics import Metrics
from tests.support.fake_runs import fake_run


def measured(folder: Path, **gpu: float | None) -> Metrics:
    none = dict.fromkeys(set(GpuSummary.model_fields) - {"schema_version"})
    summary = GpuSummary.model_validate(
        none | {"gpus": 4, "gpus_lost": 0, "samples": 9, "sampled_s": 20.0} | gpu
    )
    metrics, _ = read_metrics(fake_run(folder / "sweep" / "run").path)
    assert metrics is not None
    return metrics.model_copy(update={"gpu": summary, "samples_per_s": 50.0})


def test_counters_count_before_samples_of_power(tmp_path: Path) -> None:
    assert joules_per_sample(measured(tmp_path, energy_j=20_000.0, power_mean_w=1.0)) == pytest.approx(20)
    assert joules_per_sample(measured(tmp_path, power_mean_w=300.0)) == pytest.approx(300 * 4 / 50)
    assert joules_per_sample(measured(tmp_path)) is None


def test_counters_that_no_time_was_sampled_for_give_way_to_samples_of_power(tmp_path: Path) -> None:
    none = measured(tmp_path, energy_j=20_000.0, sampled_s=0.0, power_mean_w=300.0)
    assert joules_per_sample(none) == pytest.approx(24)
    half_a_second = measured(tmp_path, energy_j=600.0, sampled_s=0.5, power_mean_w=1.0)
    assert joules_per_sample(half_a_second) == pytest.approx(24)


def test_energy_per_sample_needs_gpus_and_throughput(tmp_path: Path) -> None:
    metrics = measured(tmp_path, power_mean_w=300.0)
    for missing in ({"gpu": None}, {"samples_per_s": None}, {"samples_per_s": 0.0}):
        assert joules_per_sample(metrics.model_copy(update=missing)) is None


def test_power_is_that_of_one_gpu(tmp_path: Path) -> None:
    assert device_watts(measured(tmp_path, power_mean_w=300.0)) == pytest.approx(300)
    assert device_watts(measured(tmp_path, energy_j=20_000.0)) == pytest.approx(20_000 / 20 / 4)
    for none in (None, measured(tmp_path), measured(tmp_path).model_copy(update={"gpu": None})):
        assert device_watts(none) is None


def test_mean_power_needs_the_power_of_each_repeat(tmp_path: Path) -> None:
    low, high = measured(tmp_path, power_mean_w=200.0), measured(tmp_path, power_mean_w=300.0)
    assert mean_watts([low, high]) == pytest.approx(250)
    assert mean_watts([low, None]) is None
    assert mean_watts([measured(tmp_path)]) is None
    assert mean_watts([]) is None


def test_carbon_follows_the_grid_and_a_repeat_without_power_hides_the_mean(tmp_path: Path) -> None:
    known, unknown = measured(tmp_path, power_mean_w=300.0), measured(tmp_path)
    energy = energy_per_sample([known, known])
    assert energy is not None
    assert grams_per_sample(energy, 400.0).value == pytest.approx(24 * 400 / 3.6e6)
    assert energy_per_sample([known, unknown]) is None
