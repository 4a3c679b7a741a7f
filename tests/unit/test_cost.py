"""Cost by size, the Pareto set, and energy per sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.read.price_list import PriceList
from analysis.results.cost import (
    SizeCost,
    device_watts,
    energy_per_sample,
    mean_watts,
    ranked,
    samples_of,
    seconds_of,
    size_costs,
    trained_alike,
)
from analysis.results.curves import Curve, scaling_curves
from analysis.stats.estimates import Estimate, on_basis
from disttrain.errors import ConfigError
from disttrain.records.hardware import GpuSummary
from disttrain.records.metrics import Metrics
from tests.support.fake_runs import fake_run, fake_sweep, with_metrics


@pytest.fixture
def curve(tmp_path: Path) -> Curve:
    """1, 2 and 4 nodes of 2 GPUs, 0.85 efficiency a doubling."""
    sweep = fake_sweep(tmp_path, gpus_per_node=(2,), scaling="strong")
    (found,) = scaling_curves(load_runs([sweep]))
    return found


def test_time_hours_and_money_follow_from_the_throughput(curve: Curve) -> None:
    costs = size_costs([curve], 1e6, PriceList(currency="EUR", device_hour={"cpu": 3.0}))
    for cost, point, devices in zip(costs, curve.points, (2, 4, 8), strict=True):
        assert cost.time_s.value == pytest.approx(1e6 / point.samples_per_s.value)
        assert cost.device_hours.value == pytest.approx(devices * cost.time_s.value / 3600)
        assert cost.money.value == pytest.approx(3 * cost.device_hours.value)
    assert size_costs([curve], 1e6, PriceList())[0].money is None


def test_a_deadline_is_met_for_certain_or_not_or_unknown(curve: Curve) -> None:
    two = size_costs([curve], 1e6, PriceList())[1]
    assert [two.meets(at) for at in (two.time_s.high, two.time_s.value, two.time_s.low * 0.99)] == [
        "yes", "cannot tell", "no",
    ]  # fmt: skip
    drifting = replace(two, time_s=on_basis(two.time_s, "not stationary"))
    assert drifting.meets(1e9) == "cannot tell"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90min", 5400), ("6h", 21600), (" 1.5 d ", 129600), ("30s", 30)]
)
def test_deadlines_have_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["soon", "6", "6H", "-1h", "0.0h", "1h30"])
def test_a_deadline_is_a_time_above_zero(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        seconds_of(text)
    message = f"--deadline={text!r}: a time above 0 with its unit (s, min, h, d), such as 6h"
    assert str(refused.value) == message


@pytest.mark.parametrize(("text", "samples"), [("50000", 50_000), ("1.2e9", 1.2e9), ("0.5", 0.5)])
def test_samples_may_have_an_exponent(text: str, samples: float) -> None:
    assert samples_of(text) == samples


@pytest.mark.parametrize("text", ["0", "-1", "many", "inf", "nan"])
def test_samples_are_a_number_above_zero(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        samples_of(text)
    message = f"--samples={text!r}: the samples to train on, a number above 0, such as 1.2e9"
    assert str(refused.value) == message


def costs_of(curve: Curve, *points: tuple[float, float]) -> list[SizeCost]:
    """Settled sizes that take so many seconds and spend so much."""
    each = size_costs([curve], 1e6, PriceList())[0]
    exact = [[Estimate(value, value, value, 3) for value in point] for point in points]
    return [replace(each, time_s=time_s, spent=spent) for time_s, spent in exact]


@pytest.mark.parametrize(
    ("points", "optimal"),
    [
        ([(100.0, 1.0), (100.1, 0.5)], [False, True]),  # worse within the margin alone
        ([(100.0, 10.0), (100.5, 10.05), (150.0, 12.0)], [True, True, False]),
        ([(10.0, 1.0), (5.0, 2.0)], [True, True]),
    ],
)
def test_differences_within_the_margin_dominate_nothing(
    curve: Curve, points: list[tuple[float, float]], optimal: list[bool]
) -> None:
    costs = costs_of(curve, *points)
    assert [cost.pareto for cost in ranked(costs)] == optimal


def test_what_is_not_settled_is_not_ranked_and_may_be_better(curve: Curve) -> None:
    (best,) = costs_of(curve, (10.0, 1.0))
    wide, slow = (replace(best, time_s=Estimate(at, at / 2, 2 * at, 3)) for at in (12.0, 80.0))
    once = replace(best, time_s=Estimate(80.0, None, None, 1), spent=Estimate(9.0, None, None, 1))
    assert [cost.settled for cost in (best, wide, slow, once)] == [True, False, False, False]
    assert [ranked([best, other])[0].pareto for other in (wide, slow, once)] == [None, True, None]
    assert ranked([best, wide])[1].pareto is None


def test_sizes_that_trained_differently_are_not_alike(curve: Curve) -> None:
    (cost,) = costs_of(curve, (10.0, 1.0))
    ended = [replace(cost.point.runs[0]) for _ in range(3)]
    for run, loss in zip(ended, (2.0, 2.01, 2.2), strict=True):
        run.final["valid_loss"] = loss
    costs = [replace(cost, point=replace(cost.point, runs=(each,))) for each in ended]
    (larger,) = with_metrics(ended[2:], global_batch_size=64)
    larger.final["valid_loss"] = 2.2
    assert trained_alike([*costs[:2], replace(cost, point=replace(cost.point, runs=(larger,)))])
    assert not trained_alike(costs)


def measured(folder: Path, **gpu: float | None) -> Metrics:
    none = dict.fromkeys(set(GpuSummary.model_fields) - {"schema_version"})
    summary = GpuSummary.model_validate(
        none | {"gpus": 4, "gpus_lost": 0, "samples": 9, "sampled_s": 20.0} | gpu
    )
    fake_run(folder / "sweep" / "run")
    (metrics,) = (run.metrics for run in load_runs([folder / "sweep"]))
    assert metrics is not None
    return metrics.model_copy(update={"gpu": summary, "samples_per_s": 50.0})


def joules(metrics: Metrics) -> float | None:
    energy = energy_per_sample([metrics])
    return None if energy is None else energy.value


def test_counters_count_before_samples_of_power(tmp_path: Path) -> None:
    assert joules(measured(tmp_path, energy_j=20_000.0, power_mean_w=1.0)) == pytest.approx(20)
    assert joules(measured(tmp_path, power_mean_w=300.0)) == pytest.approx(300 * 4 / 50)
    assert joules(measured(tmp_path)) is None


def test_counters_that_no_time_was_sampled_for_give_way_to_samples_of_power(tmp_path: Path) -> None:
    none = measured(tmp_path, energy_j=20_000.0, sampled_s=0.0, power_mean_w=300.0)
    assert joules(none) == pytest.approx(24)
    half_a_second = measured(tmp_path, energy_j=600.0, sampled_s=0.5, power_mean_w=1.0)
    assert joules(half_a_second) == pytest.approx(24)


def test_energy_per_sample_needs_gpus_and_throughput(tmp_path: Path) -> None:
    metrics = measured(tmp_path, power_mean_w=300.0)
    for missing in ({"gpu": None}, {"samples_per_s": None}, {"samples_per_s": 0.0}):
        assert joules(metrics.model_copy(update=missing)) is None


def test_power_is_that_of_one_gpu(tmp_path: Path) -> None:
    assert device_watts(measured(tmp_path, power_mean_w=300.0)) == pytest.approx(300)
    assert device_watts(measured(tmp_path, energy_j=20_000.0)) == pytest.approx(20_000 / 20 / 4)
    for none in (measured(tmp_path), measured(tmp_path).model_copy(update={"gpu": None})):
        assert device_watts(none) is None


def test_mean_power_needs_the_power_of_each_repeat(tmp_path: Path) -> None:
    low, high = measured(tmp_path, power_mean_w=200.0), measured(tmp_path, power_mean_w=300.0)
    assert mean_watts([low, high]) == pytest.approx(250)
    assert mean_watts([low, measured(tmp_path)]) is None
    assert mean_watts([]) is None


def test_a_repeat_without_power_hides_the_mean(tmp_path: Path) -> None:
    known, unknown = measured(tmp_path, power_mean_w=300.0), measured(tmp_path)
    assert energy_per_sample([known, unknown]) is None
