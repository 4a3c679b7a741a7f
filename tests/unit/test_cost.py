"""Cost by size, the Pareto set, and energy per sample."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.price_list import PriceList
from analysis.results.cost import (
    SizeCost,
    energy_per_sample,
    mean_watts,
    ranked,
    samples_of,
    seconds_of,
    size_costs,
    trained_alike,
)
from analysis.stats.estimates import Estimate, on_basis
from disttrain.errors import ConfigError
from tests.support.studies import BUCKET, changed, curves_of

PRICES = PriceList(currency="EUR", device_hour={"cpu": 3.0}, grid_g_per_kwh=360)


def test_time_hours_and_money_follow_from_the_throughput() -> None:
    (curve,) = curves_of((1, 2, 4))
    for cost, point in zip(size_costs([curve], 1e6, PRICES), curve.points, strict=True):
        assert cost.time_s.value == pytest.approx(1e6 / point.samples_per_s.value)
        assert cost.device_hours.value == pytest.approx(point.size * cost.time_s.value / 3600)
        assert cost.spent.value == cost.money.value == pytest.approx(3 * cost.device_hours.value)
    (free, *_) = size_costs([curve], 1e6, PriceList())
    assert (free.money, free.spent) == (None, free.device_hours)


def test_sizes_spend_hours_where_one_has_no_price() -> None:
    metrics = {"gpu": SimpleNamespace(energy_j=None, power_mean_w=300.0, gpus=1)}
    cpu, gpu = curves_of((1,), groups=[{BUCKET: 4}, {BUCKET: 32}])
    run = changed(gpu.points[0].runs[0], device="H100", **metrics)
    gpu = replace(gpu, points=(replace(gpu.points[0], runs=(run,)),))
    priced, unpriced = size_costs([cpu, gpu], 1e6, PRICES)
    assert (priced.money is None, unpriced.money) == (False, None)
    assert [each.spent for each in (priced, unpriced)] == [each.device_hours for each in (priced, unpriced)]
    assert unpriced.grams_per_sample.value == pytest.approx(unpriced.joules_per_sample.value * 360 / 3.6e6)
    assert priced.grams_per_sample is None


def test_a_deadline_is_met_for_certain_or_not_or_unknown() -> None:
    cost = size_costs(curves_of(), 1e6, PriceList())[1]
    deadlines = (cost.time_s.high, cost.time_s.value, cost.time_s.low * 0.99)
    assert [cost.meets(at) for at in deadlines] == ["yes", "cannot tell", "no"]
    assert replace(cost, time_s=on_basis(cost.time_s, "not stationary")).meets(1e9) == "cannot tell"


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        *((seconds_of, text, value) for text, value in (("90min", 5400), (" 1.5 d ", 129600), ("30s", 30))),
        *((seconds_of, text, None) for text in ("soon", "6", "6H", "-1h", "0.0h", "1h30")),
        *((samples_of, text, value) for text, value in (("50000", 50_000), ("1.2e9", 1.2e9), ("0.5", 0.5))),
        *((samples_of, text, None) for text in ("0", "-1", "many", "inf", "nan")),
    ],
)
def test_deadlines_have_a_unit_and_both_options_are_above_zero(read, text, value) -> None:
    if value is not None:
        assert read(text) == value
        return
    with pytest.raises(ConfigError, match=f"={text!r}: "):
        read(text)


def costs_of(*points: tuple[float, float]) -> list[SizeCost]:
    """Settled sizes that take so many seconds and spend so much."""
    each = size_costs(curves_of((1,)), 1e6, PriceList())[0]
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
def test_differences_within_the_margin_dominate_nothing(points, optimal) -> None:
    assert [cost.pareto for cost in ranked(costs_of(*points))] == optimal


def test_what_is_not_settled_is_not_ranked_and_may_be_better() -> None:
    (best,) = costs_of((10.0, 1.0))
    wide, slow = (replace(best, time_s=Estimate(at, at / 2, 2 * at, 3)) for at in (12.0, 80.0))
    once = replace(best, time_s=Estimate(80.0, None, None, 1), spent=Estimate(9.0, None, None, 1))
    assert [cost.settled for cost in (best, wide, slow, once)] == [True, False, False, False]
    assert [ranked([best, other])[0].pareto for other in (wide, slow, once)] == [None, True, None]
    assert ranked([best, wide])[1].pareto is None
    emulated = replace(best, curve=replace(best.curve, emulated=True), spent=Estimate(9.0, 9.0, 9.0, 3))
    assert [cost.pareto for cost in ranked([emulated, best])] == [True, True], "they are ranked apart"


def test_sizes_that_trained_differently_are_not_ranked() -> None:
    (cost,) = costs_of((10.0, 1.0))

    def ended(loss: float, **metrics: Any) -> SizeCost:
        run = changed(cost.point.runs[0], **metrics)
        run.final["valid_loss"] = loss
        return replace(cost, point=replace(cost.point, runs=(run,)))

    alike = [ended(2.0), ended(2.01)]
    assert trained_alike([*alike, ended(2.2, global_batch_size=64)]), "of other batches they differ rightly"
    assert not trained_alike([*alike, ended(2.2)])
    assert {each.pareto for each in ranked([*alike, ended(2.2)])} == {None}


def gpu(power_mean_w: float | None = None, energy_j: float | None = None, sampled_s: float = 20.0) -> Any:
    """Metrics of a run with four GPUs at 50 samples/s."""
    summary = SimpleNamespace(power_mean_w=power_mean_w, energy_j=energy_j, sampled_s=sampled_s, gpus=4)
    return SimpleNamespace(gpu=summary, samples_per_s=50.0)


@pytest.mark.parametrize(
    ("repeats", "joules", "watts"),
    [
        ([gpu(1.0, 20_000.0)], 20, 250),  # counters count before samples of power
        ([gpu(1.0, 600.0, 0.5)], 24, 300),
        ([gpu(300.0)], 24, 300),
        ([gpu(300.0, 20_000.0, 0.0)], 24, 300),  # of counters that no time was sampled for
        ([gpu(200.0), gpu(300.0)], (16 * 24) ** 0.5, 250),
        ([gpu(300.0), gpu()], None, None),  # a repeat without power
        ([gpu()], None, None),
        ([SimpleNamespace(gpu=None, samples_per_s=50.0)], None, None),
        ([SimpleNamespace(gpu=gpu(300.0).gpu, samples_per_s=0.0)], None, 300),
        ([], None, None),
    ],
)
def test_energy_and_power_need_those_of_each_repeat(repeats, joules, watts) -> None:
    energy, power = energy_per_sample(repeats), mean_watts(repeats)
    assert (energy and energy.value) == (joules and pytest.approx(joules))
    assert power == (watts and pytest.approx(watts))
