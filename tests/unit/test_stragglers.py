"""Identities of the loss to stragglers, and the noise floor of waiting: the bias of a minimum over ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from analysis.read.attempts import read_attempts
from analysis.results.links import link_rates
from analysis.results.rank_steps import RankSteps, equal_blame, noise_floor_s, straggler_loss
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from tests.support.link_rates import record_rates
from tests.support.straggler_records import MATRICES, delays, generate, seconds_of


def read(rows) -> RankSteps:
    found = seconds_of(rows)
    assert found is not None
    return found


def corrected_s(seconds: RankSteps) -> float:
    """Mean waiting without its floor."""
    assert seconds.floor_s is not None
    return float(seconds.seconds["comm_wait_s"].mean()) - seconds.floor_s


def biased_persistent_s(own_s) -> float:
    return float(own_s.mean(axis=1).max() - own_s.mean())


@given(MATRICES)
def test_the_parts_of_the_loss_sum_to_the_loss_and_are_not_negative(own_s):
    loss = straggler_loss(own_s)
    lost_s = (own_s.max(axis=0) - own_s.mean(axis=0)).mean()
    assert loss.total_s == pytest.approx(lost_s, abs=1e-9)
    assert -1e-9 <= loss.persistent_s <= loss.total_s


@given(MATRICES)
def test_blame_sums_to_waiting_in_each_step(arrival_s):
    blame = equal_blame(arrival_s)
    assert blame.sum(axis=0) == pytest.approx((arrival_s.max(axis=0) - arrival_s).sum(axis=0), abs=1e-7)
    assert (blame >= 0).all()


def test_blame_is_for_the_time_before_the_own_arrival():
    """During the first gap one rank waits for two; during the second, two wait for one."""
    blame = equal_blame(np.array([[0.0], [3.0], [5.0]]))
    assert blame[:, 0] == pytest.approx([0.0, 1.5, 1.5 + 4.0])


def test_half_sampling_finds_no_persistent_loss_where_ranks_are_equal():
    found = [
        (biased_persistent_s(own_s), straggler_loss(own_s).persistent_s)
        for own_s in (1 + delays(16, 40, jitter_s=0.05, seed=seed) for seed in range(40))
    ]
    biased, unbiased = np.mean(found, axis=0)
    assert biased > 0.012  # 1.77 standard deviations of the mean of 40 steps
    assert unbiased < 0.3 * biased  # the limit at 0 leaves a rest


def test_a_rank_that_is_always_slow_is_persistent_loss():
    own_s = 1 + delays(8, 50, slow=[3], slow_s=0.2, jitter_s=0.01)
    loss = straggler_loss(own_s)
    assert loss.persistent_s == pytest.approx(0.2 * 7 / 8, rel=0.05)
    assert loss.total_s - loss.persistent_s < 0.02


def test_of_one_step_the_loss_is_persistent():
    assert straggler_loss(np.array([[1.0], [3.0]])) == (1.0, 1.0)


@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_waiting_from_noise_alone_is_the_floor_at_any_number_of_ranks(ranks):
    """Nobody waits: recorded waiting grows with the ranks, and the floor takes it away."""
    found = read(generate(np.zeros((ranks, 100)), noise_s=0.001))
    recorded_s = found.seconds["comm_wait_s"].mean()
    expected = {2: 0.564, 8: 1.424, 64: 2.377, 512: 3.04}[ranks]  # E[max] of so many standard normal values
    assert recorded_s == pytest.approx(0.001 * expected, rel=0.1)
    assert abs(corrected_s(found)) < 0.00008


@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_real_waiting_is_left_when_the_floor_is_subtracted(ranks):
    for added in (delays(ranks, 100, jitter_s=0.0005), delays(ranks, 100, slow=[1], slow_s=0.02)):
        found = read(generate(added, noise_s=0.001))
        true_s = (added.max(axis=0) - added).mean()
        assert corrected_s(found) == pytest.approx(true_s, abs=0.00012, rel=0.02)


def test_the_floor_of_skewed_noise_is_that_of_its_smallest_values():
    """Of N exponential values with mean 1 the smallest is 1/N."""
    exposed_s = 0.1 + 0.001 * np.random.default_rng(5).exponential(size=(64, 400))
    own_s = np.ones_like(exposed_s)
    assert noise_floor_s(own_s, exposed_s) == pytest.approx(0.001 * (1 - 1 / 64), rel=0.2)


def test_the_floor_is_unknown_where_some_communication_was_not_measured():
    rows = generate(delays(4, 60, jitter_s=0.004))
    rows.loc[3, "comm_wait_s"] = np.nan
    assert read(rows).floor_s is None


@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
@pytest.mark.parametrize("tail", ["lognormal", "pareto"])
def test_right_skewed_noise_makes_the_floor_too_large_but_hides_no_waiting_of_its_size(ranks, tail):
    """In standard deviations of the noise; in `late`, a rank drawn in each step is later by 1 of them."""
    random = np.random.default_rng(3)
    shape = (ranks, 400)
    if tail == "lognormal":
        noise = random.lognormal(0, 1, shape) / np.sqrt((np.e - 1) * np.e)
    else:
        noise = random.pareto(2.5, shape) / np.sqrt(2.5 / (1.5**2 * 0.5))
    late = np.zeros(shape)
    late[random.integers(ranks, size=400), np.arange(400)] = 1.0
    for added, bias in ((np.zeros(shape), 0.4), (late, 0.2), (10 * late, 0.2)):
        true_s = added.max(axis=0) - added
        exposed_s = 20 + true_s + noise
        wait_s = exposed_s - exposed_s.min(axis=0)
        error = wait_s.mean() - noise_floor_s(100 + added, exposed_s) - true_s.mean()
        assert -bias < error < 0.05


def _error_without_waiting(noise):
    """Error of the corrected waiting where nobody waits, in standard deviations of the noise."""
    exposed_s = 100 + noise / noise.std()
    return (exposed_s - exposed_s.min(axis=0)).mean() - noise_floor_s(np.ones_like(noise), exposed_s)


def test_the_floor_is_too_large_by_more_the_stronger_the_skew():
    random = np.random.default_rng(3)
    for sigma in (1.5, 2.0):
        assert -0.8 < _error_without_waiting(random.lognormal(0, sigma, (16, 400))) < -0.4
    spikes = random.normal(size=(8, 400)) + 50 * (random.random((8, 400)) < 0.02)
    assert -0.8 < _error_without_waiting(spikes) < -0.4


@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
def test_symmetric_heavy_tails_give_no_systematic_error(ranks):
    random = np.random.default_rng(3)
    errors = [_error_without_waiting(random.standard_t(3, (ranks, 400))) for _ in range(5)]
    assert abs(np.mean(errors)) < 0.1


def test_link_rates_are_those_of_the_newest_attempt_that_measured_them(tmp_path: Path):
    run = RunDir(tmp_path / "run")
    for number in range(4):
        write_json(run.attempt(number).record, {"nodes": [f"c{number}", f"d{number}"]})
        if number < 2:
            record_rates(run.attempt(number), {(0, 1): 5.0 + number, (1, 0): 7.0})
    write_json(run.attempt(3).preflight, {"bandwidth": 5})
    assert link_rates(read_attempts(run, [])) == {("c1", "d1"): 6.0, ("d1", "c1"): 7.0}
    assert link_rates(read_attempts(RunDir(tmp_path / "none"), [])) == {}
