"""The sequential verdict of an A/B comparison: exact limits, false verdicts on equal arms, and power."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from benchmarks.fabric_ab import repeated_t_finds, trial
from jobs.arms.decision import decide, median_interval, needed_on_one_side
from jobs.arms.experiment import Options
from tests.support.paired_blocks import NOISE

OPTIONS = Options(pairs=100, seconds=1e9)
TRIALS = 200


def test_without_pairs_nothing_is_decided():
    assert decide([]).verdict == "undecided"
    assert decide([]).ratio is None


def test_too_few_pairs_have_no_interval_however_clear_they_are():
    found = decide([0.5] * 8)
    assert (found.verdict, found.low, found.ratio) == ("undecided", None, pytest.approx(math.exp(0.5)))
    assert decide([0.5] * 9).verdict == "gain"


@pytest.mark.parametrize(
    ("log_ratio", "verdict"),
    [(0.011, "gain"), (-0.011, "loss"), (0.0099, "equivalent"), (-0.0099, "equivalent"), (0.0, "equivalent")],
)
def test_the_interval_is_compared_with_the_margin(log_ratio, verdict):
    assert decide([log_ratio] * 20).verdict == verdict
    assert decide([log_ratio, -log_ratio] * 10, margin=0.001).verdict in ("undecided", "equivalent")


def test_the_verdict_does_not_depend_on_an_outlier():
    quiet = [0.001, -0.001] * 15
    assert decide([*quiet, 3.0]).verdict == decide([*quiet, -3.0]).verdict == "equivalent"


def test_the_ends_are_order_statistics():
    values = [random.Random(1).gauss(0, 1) for _ in range(40)]
    count = needed_on_one_side(40, 0.05)
    assert count is not None
    assert median_interval(values, 0.05) == (sorted(values)[40 - count], sorted(values)[count - 1])


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.01])
def test_the_probability_of_ever_excluding_the_median_is_below_alpha(alpha):
    """Exact, over the fair signs of 200 pairs; it is not far below, so that few pairs are wasted."""
    inside, excluded = {0: 1.0}, 0.0
    for n in range(1, 201):
        after: dict[int, float] = {}
        for above, probability in inside.items():
            for count in (above, above + 1):
                after[count] = after.get(count, 0.0) + probability / 2
        needed = needed_on_one_side(n, alpha)
        out = [count for count in after if needed is not None and max(count, n - count) >= needed]
        excluded += sum(after.pop(count) for count in out)
        inside = after
    assert 0.3 * alpha < excluded <= alpha


def test_a_smaller_alpha_needs_more_on_one_side():
    needed = [needed_on_one_side(60, alpha) for alpha in (0.2, 0.05, 0.01, 0.001)]
    assert needed == sorted(needed)
    assert len(set(needed)) == len(needed)


def test_equal_arms_are_rarely_called_different():
    """Over 200 trials with independent, autocorrelated, drifting and bursty noise, also with a margin of 0,
    which leaves the confidence sequence alone. A repeated t interval on the same blocks fails."""
    found = [(kind, seed) for kind in NOISE for seed in range(TRIALS // len(NOISE))]
    with_margin = [trial(kind, seed, 0.0, OPTIONS) for kind, seed in found]
    without = [trial(kind, seed, 0.0, replace(OPTIONS, margin=0.0)) for kind, seed in found]
    for trials in (with_margin, without):
        assert sum(each.verdict in ("gain", "loss") for each in trials) <= 0.05 * TRIALS
    assert sum(map(repeated_t_finds, without[:50])) > 0.1 * 50


@pytest.mark.parametrize("kind", NOISE)
def test_a_difference_of_three_percent_is_found_with_its_sign(kind):
    slower = [trial(kind, seed, 0.03, OPTIONS).verdict for seed in range(20)]
    faster = [trial(kind, seed, -0.03, OPTIONS).verdict for seed in range(20)]
    assert slower.count("loss") >= 18
    assert faster.count("gain") >= 18
    assert "gain" not in slower
    assert "loss" not in faster


def test_little_noise_soon_shows_equal_arms_to_be_equivalent():
    found = [trial("autocorrelated", seed, 0.0, OPTIONS) for seed in range(20)]
    assert {each.verdict for each in found} == {"equivalent"}
    assert max(each.pairs for each in found) <= 20
