"""Step records as matrices of rank x step: own seconds, nodes, the loss to late ranks, and the noise floor of
waiting, which is the bias of a minimum over ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from analysis.results.rank_steps import RankSteps, equal_blame, noise_floor_s, straggler_loss
from tests.support.straggler_records import MATRICES, delays, generate, seconds_of

COMMUNICATION = ["comm_exposed_s", "comm_wait_s", "comm_transfer_s"]
PHASES = ["compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s"]


def read(rows: pd.DataFrame) -> RankSteps:
    seconds = seconds_of(rows)
    assert seconds is not None
    return seconds


def rows_of(ranks: int = 2, steps: int = 4, **options: int) -> pd.DataFrame:
    """Each own second is known: rank r takes r ms longer in each step."""
    return generate(np.arange(ranks)[:, None] / 1000 + np.zeros((ranks, steps)), **options)


def test_matrices_have_a_row_for_each_rank_and_a_column_for_each_step():
    rows = rows_of(3)
    seconds = read(rows.sample(frac=1, random_state=0))
    assert (seconds.ranks, seconds.first.tolist()) == ((0, 1, 2), [1, 2, 3, 4])
    for name in ("step_s", *COMMUNICATION):
        assert seconds.seconds[name] == pytest.approx(rows[name].to_numpy().reshape(3, 4))
    assert list(seconds.phases_s) == PHASES
    assert seconds.own_s == pytest.approx(sum(seconds.phases_s.values()))
    assert seconds.hosts.tolist() == [[f"c{rank:02d}"] * 4 for rank in range(3)]


def test_only_measured_steps_that_all_of_two_ranks_recorded_count():
    rows = rows_of()
    for nothing in (
        rows[(rows["rank"] == 0) == (rows["step"] <= 2)],
        rows[rows["rank"] == 1],
        rows.assign(measured=False),
    ):
        assert seconds_of(nothing) is None
    assert read(rows[(rows["step"] == 3) | (rows["rank"] == 0)]).first.tolist() == [3]
    rows.loc[rows["step"] <= 2, "measured"] = False
    assert read(rows).first.tolist() == [3, 4]


def test_own_seconds_without_phases_are_the_step_without_the_communication_that_was_measured():
    rows = rows_of().drop(columns=PHASES)
    for lacking in ([], ["comm_wait_s"], ["comm_transfer_s"], COMMUNICATION):
        seconds = read(rows.drop(columns=lacking))
        known = [name for name in ("comm_wait_s", "comm_transfer_s") if name not in lacking]
        expected = rows["step_s"] - rows[known].sum(axis=1)
        assert seconds.own_s.ravel() == pytest.approx(expected.to_numpy())
        assert (seconds.phases_s, seconds.separates_waiting) == ({}, bool(known))
    whole = read(rows_of())
    assert replace(whole, own_s=whole.seconds["step_s"]).separates_waiting, "its compute is known"


def test_a_phase_that_some_ranks_did_not_measure_counts_as_zero_there():
    rows = rows_of()
    rows.loc[rows["rank"] == 1, "input_s"] = np.nan
    seconds = read(rows.assign(checkpoint_s=np.nan))
    assert list(seconds.phases_s) == ["compute_s", "input_s", "optimizer_s", "other_s"]
    own = rows.loc[rows["rank"] == 1, ["compute_s", "optimizer_s", "other_s"]].sum(axis=1)
    assert seconds.own_s[1] == pytest.approx(own)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_other_seconds_are_own_work_only_in_steps_whose_communication_every_rank_measured(name):
    """In step 2 one rank measured none: what it waited lies in `other_s`."""
    rows = rows_of().assign(other_s=0.5)
    rows[[each for each in COMMUNICATION if each != name]] = np.nan
    rows.loc[(rows["rank"] == 1) & (rows["step"] == 2), name] = np.nan
    assert read(rows).phases_s["other_s"].tolist() == [[0.5, 0.0, 0.5, 0.5]] * 2
    rows[name] = np.nan
    assert "other_s" not in read(rows).phases_s
    assert read(rows.assign(compute_s=np.nan)).phases_s["other_s"].tolist() == [[0.5] * 4] * 2


@pytest.mark.parametrize(("moved", "hosts"), [(1, ("c00", "c01")), (2, ("c00", ""))])
def test_a_rank_is_on_the_node_of_nine_tenths_of_its_steps(moved, hosts):
    rows = rows_of(steps=10)
    rows.loc[(rows["rank"] == 1) & (rows["step"] <= moved), "host"] = "d01"
    seconds = read(rows)
    assert tuple(seconds.hosts_in()) == hosts
    assert seconds.nodes == {host: [rank] for rank, host in enumerate(hosts) if host}
    assert seconds.hosts_in(slice(0, moved)) == ["c00", "d01"]
    several = rows_of(4, ranks_per_node=2)
    assert read(several).nodes == {"c00": [0, 1], "c01": [2, 3]}
    assert read(several.drop(columns="host")).nodes == {}


def test_an_aggregate_counts_as_the_mean_of_its_steps():
    rows = generate(np.zeros((2, 6)))
    late = rows["step"] > 4
    rows.loc[late, [name for name in rows if name.endswith("_s")]] *= 100
    rows.loc[late, "steps"] = 100
    seconds = read(rows)
    assert seconds.counts.tolist() == [1, 1, 1, 1, 100, 100]
    assert seconds.last.tolist() == [1, 2, 3, 4, 104, 105]
    assert seconds.own_s == pytest.approx(np.full((2, 6), seconds.own_s[0, 0]))


@given(MATRICES)
def test_losses_sum_to_the_time_of_the_last_rank_and_blame_to_all_waiting(own_s):
    loss, blame = straggler_loss(own_s), equal_blame(own_s)
    late_s = own_s.max(axis=0) - own_s
    assert loss.total_s == pytest.approx(late_s.mean(), abs=1e-9)
    assert -1e-9 <= loss.persistent_s <= loss.total_s
    assert blame.sum(axis=0) == pytest.approx(late_s.sum(axis=0), abs=1e-7)
    assert (blame >= 0).all()


def test_blame_is_for_the_time_before_the_own_arrival():
    """During the first gap one rank waits for two; during the second, two wait for one."""
    blame = equal_blame(np.array([[0.0], [3.0], [5.0]]))
    assert blame[:, 0] == pytest.approx([0.0, 1.5, 1.5 + 4.0])


def test_a_rank_that_is_always_slow_is_persistent_loss_and_chance_is_not():
    equal = [1 + delays(16, 40, jitter_s=0.05, seed=seed) for seed in range(40)]
    biased = np.mean([own_s.mean(axis=1).max() - own_s.mean() for own_s in equal])
    assert biased > 0.012  # 1.77 standard deviations of the mean of 40 steps
    unbiased = np.mean([straggler_loss(own_s).persistent_s for own_s in equal])
    assert unbiased < 0.3 * biased  # the limit at 0 leaves a rest
    loss = straggler_loss(1 + delays(8, 50, slow=[3], slow_s=0.2, jitter_s=0.01))
    assert loss.persistent_s == pytest.approx(0.2 * 7 / 8, rel=0.05)
    assert loss.total_s - loss.persistent_s < 0.02
    assert straggler_loss(np.array([[1.0], [3.0]])) == (1.0, 1.0), "of one step the loss is persistent"
    assert straggler_loss(np.array([[4.0, 2.0], [1.0, 1.0]])) == (1.0, 1.0), "each step chooses for the other"


@pytest.mark.parametrize(("ranks", "noise"), [(2, 0.564), (64, 2.377), (512, 3.04)])
def test_the_floor_is_the_waiting_from_noise_alone_and_leaves_real_waiting(ranks, noise):
    """Recorded waiting grows with the ranks: E[max] of so many standard normal values."""
    for added_s in (
        np.zeros((ranks, 100)),
        delays(ranks, 100, jitter_s=0.0005),
        delays(ranks, 100, slow=[1], slow_s=0.02),
    ):
        seconds = read(generate(added_s, noise_s=0.001))
        recorded_s, true_s = seconds.seconds["comm_wait_s"].mean(), (added_s.max(axis=0) - added_s).mean()
        if not added_s.any():
            assert recorded_s == pytest.approx(0.001 * noise, rel=0.1)
        assert seconds.floor_s is not None
        assert recorded_s - seconds.floor_s == pytest.approx(true_s, abs=0.00012, rel=0.02)


def test_the_floor_is_unknown_where_some_communication_was_not_measured():
    rows = generate(delays(4, 60, jitter_s=0.004))
    rows.loc[3, "comm_wait_s"] = np.nan
    assert read(rows).floor_s is None


@pytest.mark.parametrize("ranks", [2, 64])
@pytest.mark.parametrize(
    ("tail", "low", "high"),
    [("t", -0.3, 0.3), ("lognormal", -0.4, 0.05), ("pareto", -0.4, 0.05), ("spikes", -0.8, 0.05)],
)
def test_skewed_noise_makes_the_floor_too_large_but_hides_no_waiting_of_its_size(tail, low, high, ranks):
    """Errors in standard deviations of the noise; a rank drawn in each step may be later by 1 of them."""
    random, shape = np.random.default_rng(3), (ranks, 400)
    noise = {
        "t": lambda: random.standard_t(3, shape) / 3**0.5,
        "lognormal": lambda: random.lognormal(0, 1, shape) / np.sqrt((np.e - 1) * np.e),
        "pareto": lambda: random.pareto(2.5, shape) / np.sqrt(2.5 / (1.5**2 * 0.5)),
        "spikes": lambda: (random.normal(size=shape) + 50 * (random.random(shape) < 0.02)) / 7.1,
    }[tail]()
    late = np.zeros(shape)
    late[random.integers(ranks, size=400), np.arange(400)] = 1.0
    for added_s in (0 * late, late):
        true_s = added_s.max(axis=0) - added_s
        exposed_s = 20 + true_s + noise
        wait_s = exposed_s - exposed_s.min(axis=0)
        assert low < wait_s.mean() - noise_floor_s(100 + added_s, exposed_s) - true_s.mean() < high
