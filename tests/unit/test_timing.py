"""Medians of a benchmark and their intervals."""

from __future__ import annotations

import random

import pytest

from disttrain.comm_bench.__main__ import sizes_up_to
from disttrain.comm_bench.timing import median_interval, summary


@pytest.mark.parametrize(("count", "ends"), [(5, None), (6, (0, 5)), (15, (3, 11)), (25, (7, 17))])
def test_the_interval_of_a_median_is_that_of_the_binomial_table(count, ends):
    low_and_high = median_interval(range(count))[1:]
    assert low_and_high == (ends or (None, None))


def test_the_interval_covers_the_median_of_a_skewed_distribution():
    chance = random.Random(3)
    covered = 0
    for _ in range(400):
        _, low, high = median_interval([chance.expovariate(1.0) for _ in range(15)])
        covered += low < 0.6931 < high
    assert 0.94 < covered / 400 < 0.99  # 96.5 % by the binomial distribution


def test_few_repeats_have_no_interval():
    found = summary([0.3, 0.1, 0.2])
    assert (found.median_s, found.low_s, found.high_s, found.repeats) == (0.2, None, None, 3)


def test_the_sizes_end_with_the_largest():
    assert sizes_up_to(2**20) == [4096, 32768, 262144, 2**20]
    assert sizes_up_to(1000) == [1000]
