"""Faster, slower, equivalent within a margin, unsettled; and many comparisons together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.stats.estimates import ratio
from analysis.stats.verdicts import benjamini_hochberg, compare, verdicts

SIMULATIONS = 400
rates = st.lists(st.floats(50, 200), min_size=1, max_size=5)


def shares(true_ratio: float, spread: float, repeats: int) -> dict[str, float]:
    """Shares of verdicts in simulated comparisons, each judged alone."""
    rng = np.random.default_rng(11)
    found = [
        verdicts(
            [
                compare(
                    true_ratio * np.exp(rng.normal(0, spread, repeats)),
                    np.exp(rng.normal(0, spread, repeats)),
                )
            ]
        )[0]
        for _ in range(SIMULATIONS)
    ]
    return {name: found.count(name) / SIMULATIONS for name in ("faster", "slower", "equivalent", "unsettled")}


def test_equal_configurations_are_seldom_called_different() -> None:
    found = shares(1.0, spread=0.03, repeats=5)
    assert found["faster"] + found["slower"] <= 0.065


def test_a_ratio_at_the_margin_is_seldom_called_equivalent() -> None:
    assert shares(1.02, spread=0.01, repeats=5)["equivalent"] <= 0.065


def test_settled_cases_are_found() -> None:
    assert shares(1.1, spread=0.01, repeats=5)["faster"] > 0.99
    assert shares(0.9, spread=0.01, repeats=5)["slower"] > 0.99
    assert shares(1.0, spread=0.003, repeats=5)["equivalent"] > 0.99
    assert shares(1.05, spread=0.2, repeats=3)["unsettled"] > 0.85


def test_p_values_are_those_of_welchs_tests() -> None:
    values, base = [103.0, 101.0, 104.0, 99.0], [100.0, 102.0, 98.0]
    found = compare(values, base)
    logs, base_logs = np.log(values), np.log(base)
    assert found.p_difference == pytest.approx(stats.ttest_ind(logs, base_logs, equal_var=False).pvalue)
    above = stats.ttest_ind(logs - np.log(1.02), base_logs, equal_var=False, alternative="less").pvalue
    below = stats.ttest_ind(logs + np.log(1.02), base_logs, equal_var=False, alternative="greater").pvalue
    assert found.p_equivalence == pytest.approx(max(above, below))
    assert found.ratio == ratio(values, base)


@given(rates, rates)
def test_swapping_the_sides_swaps_faster_and_slower(values: list[float], base: list[float]) -> None:
    there, back = verdicts([compare(values, base)]), verdicts([compare(base, values)])
    swapped = {"faster": "slower", "slower": "faster"}
    assert back == [swapped.get(there[0], there[0])]


def test_one_repeat_settles_nothing() -> None:
    assert verdicts([compare([200.0], [100.0, 100.1])]) == ["unsettled"]
    assert verdicts([compare([200.0, 200.1], [100.0])]) == ["unsettled"]


@pytest.mark.filterwarnings("error")
def test_repeats_that_agree_exactly_settle_nothing() -> None:
    equal = [compare([2.0, 2.0], [1.0, 1.0]), compare([1.0, 1.0], [1.0, 1.0])]
    assert verdicts(equal) == ["unsettled"] * 2
    assert np.isnan(equal[1].p_difference)


def test_many_comparisons_of_equal_configurations_find_no_difference_at_the_stated_rate() -> None:
    """Twenty comparisons each: without a correction, 64 % of the sweeps would have a false finding."""
    rng = np.random.default_rng(5)
    false = 0
    for _ in range(200):
        found = verdicts([compare(*np.exp(rng.normal(0, 0.05, (2, 4)))) for _ in range(20)])
        false += any(verdict in ("faster", "slower") for verdict in found)
    assert false / 200 <= 0.08


def best_is_faster(correct: bool) -> float:
    """Share of sweeps of ten equal configurations of which the best is called faster than another one."""
    rng, faster = np.random.default_rng(6), 0
    for _ in range(200):
        rates = np.exp(rng.normal(0, 0.01, (10, 5)))
        best = int(np.log(rates).mean(axis=1).argmax())
        found = [compare(rates[best], each) for each in np.delete(rates, best, axis=0)]
        faster += "faster" in verdicts(found, best_of=10 if correct else 2)
    return faster / 200


def test_the_best_of_equal_configurations_is_seldom_faster() -> None:
    assert best_is_faster(correct=True) <= 0.03 < 0.05 < best_is_faster(correct=False)


def test_a_comparison_that_could_not_be_made_does_not_count_among_the_others() -> None:
    assert benjamini_hochberg([0.01, float("nan"), 0.04])[::2] == pytest.approx([0.02, 0.04])
    assert np.isnan(benjamini_hochberg([float("nan")])).all()
    assert benjamini_hochberg([]) == []
