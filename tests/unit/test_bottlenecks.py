"""Bottlenecks: a ceiling of the gain, and none without significance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.results.lost_time import MATERIAL, STRAGGLERS, bottlenecks
from analysis.results.phases import WAIT, Phases, partition
from disttrain.records.steps import PHASES


def times(repeats: int = 3, **phases: float) -> Phases:
    """Compute of 1 s, further phases as given; repeats differ by 1 %."""
    spread = 1 + 0.01 * (np.arange(repeats) - (repeats - 1) / 2)
    seconds = {name: value * spread for name, value in ({"compute_s": 1.0} | phases).items()}
    return partition(np.sum([*seconds.values()], axis=0), seconds)


def alone(input_s: np.ndarray) -> Phases:
    """Steps of 1 s with this input time."""
    return partition(np.ones(len(input_s)), {"input_s": input_s, "compute_s": 1 - input_s})


def test_phases_are_ranked_by_the_gain_without_them() -> None:
    first, second = bottlenecks(times(comm_transfer_s=0.5, input_s=0.25), None)
    assert (first.phase, second.phase) == ("comm_transfer_s", "input_s")
    assert first.significant
    assert first.ceiling.value == pytest.approx(0.5 / 1.25)
    assert first.ceiling.low <= first.ceiling.value <= first.ceiling.high
    assert first.ceiling.repeats == 3


def test_a_share_at_the_bound_is_a_bottleneck_and_not_significant() -> None:
    (found,) = bottlenecks(alone(np.full(2, MATERIAL)), None)
    assert (found.phase, found.share.low, found.significant) == ("input_s", MATERIAL, False)


def test_a_phase_that_is_the_whole_step_has_a_finite_ceiling() -> None:
    (found,) = bottlenecks(alone(np.ones(2)), None)
    assert (found.ceiling.low, found.ceiling.value, found.ceiling.high) == pytest.approx((999, 999, 999))


def test_only_compute_beyond_the_base_counts() -> None:
    assert bottlenecks(times(), times()) == []
    (found,) = bottlenecks(times(compute_s=1.3), times())
    assert found.phase == "compute_s"
    assert found.ceiling.value == pytest.approx(0.3)


def test_nothing_is_significant_in_one_repeat_or_in_noise() -> None:
    (single,) = bottlenecks(times(repeats=1, input_s=0.3), None)
    assert (single.significant, single.ceiling.low) == (False, None)
    (noisy,) = bottlenecks(alone(np.array([0.0, 0.01, 0.4])), None)
    assert not noisy.significant
    assert noisy.ceiling.low == 0


def test_steps_that_are_not_stationary_have_no_interval() -> None:
    found = bottlenecks(replace(times(input_s=0.3, compute_s=1.3), basis="not stationary"), times())
    assert {each.phase for each in found} == {"input_s", "compute_s"}
    assert not any(each.significant or each.share.low is not None for each in found)
    assert {each.ceiling.basis for each in found} == {"not stationary"}


def test_named_stragglers_are_a_part_and_the_phases_keep_the_rest() -> None:
    """Of 0.3 s of waiting and 0.1 s of longer compute, stragglers cost 0.25 s and 0.04 s."""
    point = times(compute_s=1.1, comm_wait_s=0.3)
    spread = point.array(WAIT) / 0.3
    cost_s = {WAIT: 0.25 * spread, "compute_s": 0.04 * spread}
    found = bottlenecks(point, times(), 1.0, cost_s)
    assert {each.phase: each.share.value for each in found} == pytest.approx(
        {STRAGGLERS: 0.29 / 1.4, "compute_s": 0.06 / 1.4, WAIT: 0.05 / 1.4}
    )
    assert {each.phase for each in found if each.rest} == {"compute_s", WAIT}


def test_noise_around_nothing_is_rarely_significant() -> None:
    generator, count, wrong = np.random.default_rng(3), 600, 0
    for _ in range(count):
        share = MATERIAL * (1 + 0.5 * generator.standard_normal(3))
        wrong += any(each.significant for each in bottlenecks(alone(share), None))
    assert wrong / count <= 0.04


@given(st.dictionaries(st.sampled_from(PHASES), st.floats(0, 10)), st.floats(0.1, 10))
@example({"input_s": 1.0, "comm_wait_s": 1.4e-142}, 2.0)  # the square of this variance is 0
def test_the_ceiling_is_the_gain_of_a_step_without_the_phase(phases: dict[str, float], rest: float) -> None:
    point = times(repeats=2, **(phases | {"compute_s": rest}))
    for each in bottlenecks(point, None):
        without = np.array(point.step_s) - point.array(each.phase)
        if np.all(without > 0.01 * np.array(point.step_s)):
            assert 1 + each.ceiling.value == pytest.approx(float(np.mean(point.step_s) / np.mean(without)))
