"""The search of a batch size on machines of known memory and speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.engine import batch_fit
from disttrain.records.checkpoint import BatchProbe

MIB = 2**20


class Machine:
    """Takes `fixed + slope x batch` bytes; its speed saturates at `saturation` samples."""

    def __init__(self, fixed: float, slope: float, saturation: int = 10**9) -> None:
        self.fixed, self.slope, self.saturation = fixed, slope, saturation
        self.tried: list[int] = []

    def measure(self, size: int) -> BatchProbe:
        self.tried.append(size)
        peak = round(self.fixed + self.slope * size)
        return BatchProbe(local_batch_size=size, peak_bytes=peak, samples_per_s=min(size, self.saturation))


def chosen(machine: Machine, budget: float, multiple: int | None = None, limit: int = 10**6) -> int:
    probes = batch_fit.search(machine.measure, multiple, limit, budget)
    return next(batch_fit.by_preference(probes, budget)).local_batch_size


def test_two_probes_give_both_parts():
    machine = Machine(300, 7)
    assert batch_fit.fit_memory([machine.measure(2), machine.measure(16)]) == (300, 7)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(100, 100_000))
def test_nothing_predicted_beyond_the_budget_is_tried(fixed, slope, budget):
    machine = Machine(fixed, slope)
    probes = batch_fit.search(machine.measure, None, 10**6, budget)
    beyond = [size for size in machine.tried if fixed + slope * size > budget]
    assert len(beyond) <= 1  # of the first two, from which the prediction follows
    assert set(beyond) <= {1, 2}
    fitting = [probe for probe in probes if probe.peak_bytes <= budget]
    if fitting:  # the largest one is near the bound, and a multiple of 8
        largest = (budget - fixed) // slope
        assert fitting[-1].local_batch_size >= min(largest, max(1, largest - 7))


def test_the_smaller_of_equally_fast_sizes_is_chosen():
    machine = Machine(0, 1, saturation=16)
    assert chosen(machine, 10**6) == 16
    assert machine.tried == [1, 2, 4, 8, 16, 32, 64]  # no gain at two sizes: enough


@pytest.mark.parametrize(("budget", "expected"), [(1000, 96), (100, 96), (95, 48), (47, 32), (30, 24)])
def test_a_global_batch_size_allows_its_divisors_alone(budget, expected):
    assert chosen(Machine(0, 1), budget, multiple=96) == expected


def test_no_more_samples_than_there_are():
    assert chosen(Machine(0, 1), 10**6, limit=100) == 96


def test_without_a_size_that_fits_there_is_no_choice():
    probes = batch_fit.search(Machine(10 * MIB, 1).measure, None, 64, MIB)
    assert list(batch_fit.by_preference(probes, MIB)) == []


def test_a_choice_that_fails_its_verification_is_followed_by_a_smaller_one():
    probes = batch_fit.search(Machine(0, 1).measure, None, 64, 64)
    sizes = [probe.local_batch_size for probe in batch_fit.by_preference(probes, 64)]
    assert sizes == [64, 32, 16, 8, 4, 2, 1]
