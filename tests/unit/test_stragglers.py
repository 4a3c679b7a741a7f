"""Identities of the loss to stragglers, tests of late ranks, and the bias of the minimum over ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import t

from analysis.stragglers.blame import equal_blame, waiting
from analysis.stragglers.episodes import find_episodes
from analysis.stragglers.heat_map import heat_map
from analysis.stragglers.intervals import (
    correlation,
    mean_interval,
)
from analysis.stragglers.links import LinkRate
from analysis.stragglers.noise_floor import NoiseFloor, corrected_wait, noise_floor
from analysis.stragglers.of_runs import RunStragglers, noise_floors, read_link_rates, stragglers_of
from analysis.stragglers.outliers import median_of_others, slow_ranks, smallest_excess_s
from analysis.stragglers.persistence import split_loss, unbiased_loss
from analysis.stragglers.rank_steps import RankSteps, rank_steps
from disttrain.records.json_files import write_json
from disttrain.records.links import LinkRates, NodePairRate
from disttrain.records.run_directory import RunDir
from tests.support.step_series import ar1
from tests.support.straggler_records import delays, generate

MATRICES = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(0, 100, allow_subnormal=False),
)


def read(rows: pd.DataFrame) -> RankSteps:
    found = rank_steps(rows)
    assert found is not None
    return found


@given(MATRICES)
def test_the_parts_of_the_loss_sum_to_the_loss_and_are_not_negative(own_s):
    lost_s = (own_s.max(axis=0) - own_s.mean(axis=0)).mean()
    for parts in (split_loss(own_s), unbiased_loss(own_s)):
        assert parts.total_s == pytest.approx(lost_s, abs=1e-9)
        assert parts.persistent_s >= -1e-9
        assert parts.transient_s >= -1e-9


@given(MATRICES)
def test_blame_sums_to_waiting_in_each_step(arrival_s):
    blame = equal_blame(arrival_s)
    assert blame.sum(axis=0) == pytest.approx(waiting(arrival_s).sum(axis=0), abs=1e-7)
    assert (blame >= 0).all()


def test_blame_is_for_the_time_before_the_own_arrival():
    """During the first gap one rank waits for two; during the second, two wait for one."""
    blame = equal_blame(np.array([[0.0], [3.0], [5.0]]))
    assert blame[:, 0] == pytest.approx([0.0, 1.5, 1.5 + 4.0])


@given(MATRICES)
def test_the_median_of_the_others_leaves_out_the_rank_itself(values):
    expected = [np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(len(values))]
    assert median_of_others(values) == pytest.approx(np.array(expected))


def test_half_sampling_finds_no_persistent_loss_where_ranks_are_equal():
    found = [
        (split_loss(own_s).persistent_s, unbiased_loss(own_s).persistent_s)
        for own_s in (1 + delays(16, 40, jitter_s=0.05, seed=seed) for seed in range(40))
    ]
    biased, unbiased = np.mean(found, axis=0)
    assert biased > 0.012  # 1.77 standard deviations of the mean of 40 steps
    assert unbiased < 0.3 * biased  # the limit at 0 leaves a rest


def test_a_rank_that_is_always_slow_is_persistent_loss():
    own_s = 1 + delays(8, 50, slow=[3], slow_s=0.2, jitter_s=0.01)
    loss = unbiased_loss(own_s)
    assert loss.persistent_s == pytest.approx(0.2 * 7 / 8, rel=0.05)
    assert loss.transient_s < 0.02


@pytest.mark.parametrize("ends", [(80, 150), (60, 150)])
def test_two_ranks_that_are_slow_for_different_times_are_two_episodes(ends):
    """The long segment of one rank, in random order, is no measure of chance for the shorter one."""
    own_s = 0.1 + delays(8, 200, jitter_s=0.0005)
    for rank, end in zip((2, 3), ends, strict=True):
        own_s[rank, 50:end] += 0.02
    found = {each.rank: (each.first, each.last) for each in find_episodes(own_s)}
    assert found == {rank: (50, end - 1) for rank, end in zip((2, 3), ends, strict=True)}


@pytest.mark.filterwarnings("error")
def test_a_segment_without_a_slow_step_is_no_episode():
    """The level of the segment with the largest sum is below zero here, so that nothing is left of it."""
    random = np.random.default_rng([83, 2, 20])
    assert find_episodes(0.12 + 0.006 * random.standard_normal((2, 20)).cumsum(axis=1)) == []


@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_waiting_from_noise_alone_is_the_floor_at_any_number_of_ranks(ranks):
    """Nobody waits: recorded waiting grows with the ranks, and the floor takes it away."""
    found = read(generate(np.zeros((ranks, 100)), noise_s=0.001))
    floor = noise_floor(found.own_s, found.wait_s + found.transfer_s)
    recorded_s = found.wait_s.mean()
    expected = {2: 0.564, 8: 1.424, 64: 2.377, 512: 3.04}[ranks]  # E[max] of so many standard normal values
    assert recorded_s == pytest.approx(0.001 * expected, rel=0.1)
    assert floor.noise_s == pytest.approx(0.001, rel=0.15)
    assert abs(corrected_wait(found.wait_s, floor).mean()) < 0.00008


@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_real_waiting_is_left_when_the_floor_is_subtracted(ranks):
    for added in (delays(ranks, 100, jitter_s=0.0005), delays(ranks, 100, slow=[1], slow_s=0.02)):
        found = read(generate(added, noise_s=0.001))
        floor = noise_floor(found.own_s, found.wait_s + found.transfer_s)
        true_s = waiting(added).mean()
        assert corrected_wait(found.wait_s, floor).mean() == pytest.approx(true_s, abs=0.00012, rel=0.02)


def test_the_floor_of_skewed_noise_is_that_of_its_smallest_values():
    """Of N exponential values with mean 1 the smallest is 1/N, and 1.4826 MAD is 0.713."""
    exposed_s = 0.1 + 0.001 * np.random.default_rng(5).exponential(size=(64, 400))
    own_s = np.ones_like(exposed_s)
    found = noise_floor(own_s, exposed_s)
    assert found.floor_s == pytest.approx(0.001 * (1 - 1 / 64), rel=0.2)
    assert found.noise_s == pytest.approx(0.000713, rel=0.1)
    assert found == noise_floor(own_s, exposed_s) == noise_floor(own_s, exposed_s, seed=0)
    many = np.random.default_rng(5).exponential(0.001, size=(512, 500))
    assert noise_floor(np.ones_like(many), many).floor_s == pytest.approx(0.001, rel=0.2)
    assert noise_floor(own_s[:1], exposed_s[:1]) == (0.0, 0.0)
    waits = np.array([[1.0, 2.0], [3.0, 6.0]])
    assert corrected_wait(waits, NoiseFloor(0.5, 0.1)).tolist() == [1.0, 4.0]


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
        error = corrected_wait(wait_s, noise_floor(100 + added, exposed_s)).mean() - true_s.mean()
        assert -bias < error < 0.05


def _error_without_waiting(noise):
    """Error of the corrected waiting where nobody waits, in standard deviations of the noise."""
    exposed_s = 100 + noise / noise.std()
    floor = noise_floor(np.ones_like(noise), exposed_s)
    return corrected_wait(exposed_s - exposed_s.min(axis=0), floor).mean()


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


def test_at_least_half_of_the_ranks_are_the_reference():
    for levels, slow in (([1, 1, 2, 3], [2, 3]), ([1, 2, 8, 40], []), ([5, 1], [0])):
        assert slow_ranks(np.repeat(np.array(levels, dtype=float)[:, None], 50, axis=1)) == slow


def test_the_ranks_of_a_slow_node_share_the_last_place():
    own_s = 0.12 + delays(8, 20, slow=[4, 5, 6, 7], slow_s=0.03, jitter_s=0.005)
    assert slow_ranks(own_s, {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}) == [4, 5, 6, 7]
    assert slow_ranks(own_s) != [4, 5, 6, 7]


def test_the_smallest_excess_is_that_of_the_strictest_rule():
    """Equal ranks need 3 %; ranks that differ 3.5 robust standard deviations of their means."""
    assert smallest_excess_s(np.full((4, 50), 2.0)) == pytest.approx(0.06)
    spread = np.array([1.0, 2.0, 3.0, 4.0, 5.0])[:, None] + np.zeros((5, 50))
    assert smallest_excess_s(spread) == pytest.approx(3.5 * 1.4826)
    own_s = 1 + delays(2, 4, jitter_s=0.01)
    deviation = own_s[0] - own_s[1]
    assert smallest_excess_s(own_s) >= 12 * deviation.std()


def test_a_heat_map_of_many_ranks_and_steps_keeps_one_slow_rank_visible():
    found = read(generate(delays(200, 300, slow=[77], slow_s=0.05)))
    made = heat_map(found, rows=50, columns=60)
    assert made.excess_s.shape == (50, 60)
    (row,) = [index for index, (first, last) in enumerate(made.ranks) if first <= 77 <= last]
    assert made.excess_s[row] == pytest.approx(np.full(60, 0.05), rel=0.01)
    assert np.delete(made.excess_s, row, axis=0).max() < 0.001
    assert made.steps == [(first, first + 4) for first in range(1, 300, 5)]
    assert made.ranks == [(first, first + 3) for first in range(0, 200, 4)]


def test_a_column_of_a_heat_map_weights_records_by_their_steps():
    found = read(generate(delays(2, 4, slow=[1], slow_s=0.04, between=(4, 4))))
    weighted = replace(found, counts=np.array([1, 1, 1, 5]))
    made = heat_map(weighted, columns=2)
    assert made.excess_s[1] == pytest.approx([0.0, 0.04 * 5 / 6], abs=1e-6)
    assert made.steps == [(1, 2), (3, 8)]
    assert (made.ranks, heat_map(found).steps) == ([(0, 0), (1, 1)], [(step, step) for step in range(1, 5)])


def test_the_interval_of_a_mean_is_students_over_means_of_batches():
    for steps, batches in ((4, 2), (12, 5), (30, 7), (60, 10)):
        series = np.random.default_rng(steps).standard_normal(steps)
        means = [part.mean() for part in np.array_split(series, batches)]
        error = np.std(means, ddof=1) / np.sqrt(batches)
        for confidence in (0.95, 0.5):
            low, high = t.interval(confidence, batches - 1, loc=series.mean(), scale=error)
            assert mean_interval(series, confidence) == pytest.approx((series.mean(), low, high))
    assert mean_interval(series) == mean_interval(series, 0.95)
    assert mean_interval(np.array([1.0, 2.0, 6.0])) == (3.0, None, None)


def test_the_correlation_is_the_median_over_ranks_without_the_bias_of_few_steps():
    random = np.random.default_rng(6)
    for lag_1 in (0.0, 0.5, 0.9):
        rows = np.stack([ar1(random, 100, lag_1, 0.1) for _ in range(101)])
        assert correlation(rows) == pytest.approx(lag_1, abs=0.03)
    alternating = np.tile([1.0, -1.0], (3, 10))
    assert correlation(alternating) == 0.0
    assert correlation(np.zeros((2, 20))) == pytest.approx((1 / 20) / (1 - 4 / 20))
    assert correlation(np.zeros((2, 4))) == pytest.approx((1 / 4) / (1 - 0.5))
    assert correlation(np.linspace(0, 1, 200)[None, :]) == 0.98


def of_two_runs() -> pd.DataFrame:
    """Rank 1 is slow in run `a`; run `b` has other noise, run `c` one rank."""
    rows = [
        generate(delays(4, 60, slow=[1], slow_s=0.05), noise_s=0.0002).assign(run="a"),
        generate(np.zeros((4, 60)), noise_s=0.001).assign(run="b"),
        generate(np.zeros((1, 60))).assign(run="c"),
    ]
    steps = pd.concat(rows, ignore_index=True)
    return steps.assign(run=steps["run"].astype("category"))


def test_the_stragglers_of_runs_are_by_their_paths():
    steps = of_two_runs()
    found = stragglers_of(steps, ["c", "a", "unknown", "b"])
    assert list(found) == ["a", "b"]
    assert [each.name for each in found["a"].diagnosis.culprits] == ["rank 1 on c01"]
    assert found["a"].seconds.own_s.shape == (4, 60)
    assert found["b"].diagnosis.culprits == ()
    assert stragglers_of(steps[:0], ["a"]) == {}


def test_noise_floors_are_those_of_the_diagnoses_and_of_the_other_runs():
    steps = of_two_runs()
    every = noise_floors(steps, ["a", "b", "c", "unknown"], {})
    assert list(every) == ["a", "b"]
    assert every["a"] < 0.0002 < every["b"] < 0.002
    known = stragglers_of(steps, ["b"])
    changed = replace(known["b"].diagnosis, floor=NoiseFloor(0.5, 0.1))
    found = noise_floors(steps, ["a", "b"], {"b": RunStragglers(known["b"].seconds, changed)})
    assert found == {"a": every["a"], "b": 0.5}
    unmeasured = steps.assign(comm_wait_s=np.where(steps["run"] == "a", np.nan, steps["comm_wait_s"]))
    assert noise_floors(unmeasured, ["a", "b"], {}) == {"b": every["b"]}


def test_link_rates_are_those_of_the_newest_attempt_that_measured_them(tmp_path: Path):
    run = RunDir(tmp_path / "run")
    rates = [
        NodePairRate(source=0, target=1, bytes_per_s=5.0),
        NodePairRate(source=1, target=0, bytes_per_s=7.0),
    ]
    for number, host in enumerate(("old", "new")):
        record = LinkRates(
            attempt=number, backend="gloo", message_bytes=8, hosts=[f"{host}0", f"{host}1"], rates=rates
        )
        write_json(run.attempt(number).links, record.model_dump())
    for number in (2, 3):
        write_json(run.attempt(number).record, {"nodes": ["x", "y"]})
    write_json(run.attempt(3).links, {"rates": 5})
    assert read_link_rates(run.path) == [LinkRate("new0", "new1", 5.0), LinkRate("new1", "new0", 7.0)]
    write_json(run.attempt(1).record, {"nodes": ["c00", "c01"]})
    assert read_link_rates(run.path) == [LinkRate("c00", "c01", 5.0), LinkRate("c01", "c00", 7.0)]
    write_json(run.attempt(1).record, {"nodes": ["c00", "c00"]})
    assert [rate.source for rate in read_link_rates(run.path)] == ["new0", "new1"], "one machine"
    assert read_link_rates(tmp_path / "none") == []


def test_steps_that_a_rank_did_not_record_are_left_out():
    rows = generate(np.zeros((3, 20)))
    rows = rows[~((rows["rank"] == 1) & (rows["step"] > 15))]
    rows.loc[rows["step"] <= 2, "measured"] = False
    found = read(rows)
    assert found.steps.tolist() == list(range(3, 16))
    assert found.nodes == {"c00": [0], "c01": [1], "c02": [2]}
    assert rank_steps(rows[rows["rank"] == 0]) is None


def test_an_aggregate_counts_as_the_mean_of_its_steps():
    rows = generate(np.zeros((2, 6)))
    seconds = [name for name in rows if name.endswith("_s")]
    late = rows["step"] > 4
    rows.loc[late, seconds] *= 100
    rows.loc[late, "steps"] = 100
    found = read(rows)
    assert found.counts.tolist() == [1, 1, 1, 1, 100, 100]
    assert found.own_s == pytest.approx(np.full((2, 6), found.own_s[0, 0]))
