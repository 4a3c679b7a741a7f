"""Permutations of sample indices: bijective, uniform, seeded, and in constant memory where they should be."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.data.permutation import FeistelPermutation, TablePermutation


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 5))
def test_feistel_is_a_permutation(size, seed, epoch):
    order = FeistelPermutation(size, (seed, epoch)).at(np.arange(size))
    assert sorted(order.tolist()) == list(range(size))


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 5))
def test_a_table_is_the_permutation_of_numpy(size, seed, epoch):
    expected = np.random.default_rng([seed, epoch]).permutation(size)
    assert np.array_equal(TablePermutation(size, (seed, epoch)).at(np.arange(size)), expected)


def test_feistel_is_fixed():
    """Runs resume in the order in which they began, so the order of a seed and epoch never changes."""
    order = FeistelPermutation(10**9, (1, 2)).at(np.array([0, 1, 2, 10**9 - 1]))
    assert order.tolist() == [71568841, 539141546, 238461192, 413978071]
    square = FeistelPermutation(16, (1, 2)).at(np.arange(16))
    assert square.tolist() == [9, 13, 11, 2, 0, 7, 14, 5, 12, 10, 1, 8, 6, 3, 4, 15]


def test_a_table_takes_4_bytes_per_index():
    assert TablePermutation(1000, (0, 0)).at(np.arange(3)).dtype == np.int32


def test_feistel_follows_seed_and_epoch():
    orders = [FeistelPermutation(1000, s).at(np.arange(1000)) for s in ((0, 0), (0, 1), (1, 0))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(orders[one] == orders[other]) < 0.01


def chi_square(values, size, bins=50):
    """Pearson's statistic of `values` below `size` against a uniform distribution; its mean is bins - 1."""
    counts = np.bincount(values * bins // size, minlength=bins)
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


# 49 degrees of freedom: 85 is exceeded with probability 0.001
@pytest.mark.parametrize("size", [2**24 + 1, 10**9, 3 * 10**11])
def test_feistel_is_uniform(size):
    start = size // 3
    order = FeistelPermutation(size, (4, 0)).at(np.arange(start, start + 100_000))
    assert chi_square(order, size) < 85
    # consecutive positions are independent: differences, and pairs of bins
    assert chi_square(np.diff(order) % size, size) < 85
    pairs = (order[:-1:2] * 7 // size) * 7 + order[1::2] * 7 // size
    assert chi_square(pairs, 49, bins=49) < 85
    # the same position in other epochs
    epochs = [int(FeistelPermutation(size, (4, e)).at(np.array([start]))[0]) for e in range(5000)]
    assert chi_square(np.array(epochs), size) < 85


def test_feistel_takes_constant_memory():
    tracemalloc.start()
    order = FeistelPermutation(10**9, (0, 0)).at(np.arange(1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(order.tolist())) == 1000
    assert peak < 1 << 20
