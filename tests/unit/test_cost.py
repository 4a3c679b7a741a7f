"""Cost by size: cheapest in time, and the Pareto set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.costs.cost import cheapest, pareto, samples_of, seconds_of, size_costs
from analysis.efficiency import Curve, scaling_curves
from analysis.read.frames import load
from analysis.stats.estimates import not_stationary
from disttrain.errors import ConfigError
from tests.support.fake_runs import fake_sweep

pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1)


@given(pairs)
def test_the_pareto_set_dominates_the_rest(points: list[tuple[int, int]]) -> None:
    best = [point for point, good in zip(points, pareto(points), strict=True) if good]
    assert best
    for x, y in points:
        assert any(a <= x and b <= y for a, b in best)
    for x, y in best:
        assert not any((a < x and b <= y) or (a <= x and b < y) for a, b in points)


@pytest.fixture
def curve(tmp_path: Path) -> Curve:
    """1, 2 and 4 nodes of 2 GPUs, 0.85 efficiency a doubling."""
    sweep = fake_sweep(tmp_path, gpus_per_node=(2,), scaling="strong")
    (found,) = scaling_curves(load([sweep]))
    return found


def test_time_hours_and_money_follow_from_the_throughput(curve: Curve) -> None:
    costs = size_costs(curve, 1e6, {1: 2, 2: 4, 4: 8}, price_per_hour=3.0)
    for cost, point in zip(costs, curve.points, strict=True):
        assert cost.time_s.value == pytest.approx(1e6 / point.samples_per_s.value)
        assert cost.device_hours.value == pytest.approx(cost.devices * cost.time_s.value / 3600)
        assert cost.money.value == pytest.approx(3 * cost.device_hours.value)
        assert cost.meets is None
    assert size_costs(curve, 1e6, {1: 2, 2: 4, 4: 8})[0].money is None


def test_the_cheapest_size_within_the_deadline(curve: Curve) -> None:
    devices = {1: 2, 2: 4, 4: 8}
    one, two, four = (cost.time_s for cost in size_costs(curve, 1e6, devices))

    def found(deadline_s: float) -> int | None:
        best = cheapest(size_costs(curve, 1e6, devices, deadline_s=deadline_s))
        return best and best.size

    assert found(one.high) == 1
    assert found(one.value) == 2  # one node may take longer: its interval includes the deadline
    assert found(two.high) == 2
    assert found(four.low / 2) is None
    for deadline_s in (two.low, two.value):
        meets = [cost.meets for cost in size_costs(curve, 1e6, devices, deadline_s=deadline_s)]
        assert meets == ["no", "undecided", "yes"]


def test_without_an_interval_the_deadline_is_undecided(curve: Curve) -> None:
    drifting = [replace(point, samples_per_s=not_stationary(point.samples_per_s)) for point in curve.points]
    costs = size_costs(replace(curve, points=drifting), 1e6, {1: 2, 2: 4, 4: 8}, deadline_s=1e9)
    assert [cost.meets for cost in costs] == ["undecided"] * 3
    assert cheapest(costs) is None


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


def test_a_point_worse_within_the_margin_alone_dominates() -> None:
    points = [(100.0, 1.0), (100.1, 0.5)]
    assert pareto(points) == [True, True]
    assert pareto(points, 0.02) == [False, True]


def test_differences_within_the_margin_dominate_nothing() -> None:
    points = [(100.0, 10.0), (100.5, 10.05), (150.0, 12.0)]
    assert pareto(points) == [True, False, False]
    assert pareto(points, 0.02) == [True, True, False]
