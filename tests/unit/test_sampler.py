"""Each sample once per epoch on one rank; the same global batches at every world size; resume is the tail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.batch_plan import BatchPlan
from disttrain.data.loader import GlobalOrder, RankBatches
from disttrain.errors import ConfigError

samples = st.integers(1, 60)
seeds = st.integers(0, 5)
plans = st.builds(BatchPlan, local=st.integers(1, 5), accumulation=st.integers(1, 3), world=st.integers(1, 5))


def batches(count, seed, plan, rank, steps, start_step=0):
    return list(RankBatches(GlobalOrder(count, seed), plan, rank, steps, start_step))


def global_batch(count, seed, plan, step):
    """Indices that all ranks together read in one step."""
    first, last = step * plan.accumulation, (step + 1) * plan.accumulation
    ranks = [batches(count, seed, plan, rank, step + 1)[first:last] for rank in range(plan.world)]
    return [index for rank in ranks for batch in rank for index in batch]


@given(samples, seeds, plans)
def test_an_epoch_has_each_sample_exactly_once_over_all_ranks(count, seed, plan):
    epochs = plan.global_  # after this many epochs a step ends where an epoch does
    read = [
        i for rank in range(plan.world) for batch in batches(count, seed, plan, rank, count) for i in batch
    ]
    assert sorted(read) == sorted(list(range(count)) * epochs)


@given(samples, seeds, st.integers(1, 4))
def test_each_epoch_of_the_stream_is_a_permutation(count, seed, epochs):
    order = GlobalOrder(count, seed)
    for epoch in range(epochs):
        assert sorted(order.at(np.arange(epoch * count, (epoch + 1) * count))) == list(range(count))


@given(samples, seeds, st.integers(0, 40), st.integers(0, 40))
def test_positions_of_the_stream_are_read_in_any_pieces(count, seed, start, length):
    whole = GlobalOrder(count, seed).at(np.arange(start + length))
    assert np.array_equal(GlobalOrder(count, seed).at(np.arange(start, start + length)), whole[start:])
    assert np.array_equal(GlobalOrder(count, seed).at(np.arange(0, start + length, 3)), whole[::3])


def test_an_epoch_is_the_permutation_of_numpy():
    """Runs resume in the order in which they began, whatever the version of this package."""
    expected = np.concatenate([np.random.default_rng([3, epoch]).permutation(7) for epoch in range(3)])
    assert np.array_equal(GlobalOrder(7, 3).at(np.arange(21)), expected)


def test_an_epoch_is_permuted_once(monkeypatch):
    seeds = []
    generator = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: (seeds.append(seed), generator(seed))[1])
    read = list(RankBatches(GlobalOrder(1000, 3), BatchPlan(local=5, accumulation=1, world=1), 0, steps=400))
    assert {type(index) for batch in read for index in batch} == {int}
    assert seeds == [(3, 0), (3, 1)]


@given(
    samples,
    seeds,
    st.sampled_from([1, 2, 3, 4, 6, 12]),
    st.sampled_from([1, 2, 3, 4, 6, 12]),
    st.integers(0, 20),
)
def test_every_world_size_forms_the_same_global_batch(count, seed, world, local, step):
    if 12 % (world * local):
        world = local = 1
    spread = global_batch(count, seed, BatchPlan(local, 12 // (world * local), world), step)
    alone = global_batch(count, seed, BatchPlan(12, 1, 1), step)
    assert sorted(spread) == sorted(alone)


@given(samples, seeds, plans, st.integers(0, 12), st.integers(0, 12))
def test_resume_yields_the_tail(count, seed, plan, steps, start_step):
    whole = batches(count, seed, plan, plan.world - 1, steps)
    assert (
        batches(count, seed, plan, plan.world - 1, steps, start_step)
        == whole[start_step * plan.accumulation :]
    )


@given(samples, seeds, plans, st.integers(0, 12), st.integers(0, 12))
def test_length_is_the_number_of_micro_steps(count, seed, plan, steps, start_step):
    sampler = RankBatches(GlobalOrder(count, seed), plan, 0, steps, start_step)
    drawn = list(sampler)
    assert len(sampler) == len(drawn)
    assert all(len(batch) == plan.local for batch in drawn)


def test_a_rank_reads_its_own_stretch_of_each_micro_step():
    plan = BatchPlan(local=2, accumulation=2, world=3)
    stream = GlobalOrder(100, 0).at(np.arange(24)).tolist()
    # step 0: micro-step 0 covers 0..5, micro-step 1 covers 6..11; rank 1 reads the second pair of each
    assert batches(100, 0, plan, 1, 2) == [stream[2:4], stream[8:10], stream[14:16], stream[20:22]]


def test_seed_and_epoch_change_the_order():
    order = GlobalOrder(50, 0)
    first, second = order.at(np.arange(50)).tolist(), order.at(np.arange(50, 100)).tolist()
    assert first != second
    assert first != GlobalOrder(50, 1).at(np.arange(50)).tolist()
    assert first == GlobalOrder(50, 0).at(np.arange(50)).tolist()


def test_no_samples_is_refused():
    with pytest.raises(ConfigError, match=r"^data: the training split has no samples$"):
        GlobalOrder(0, 0)


def test_a_run_begins_with_the_first_step():
    plan = BatchPlan(local=2, accumulation=3, world=1)
    order = GlobalOrder(10, 0)
    assert [RankBatches(order, plan, 0, 4).first, RankBatches(order, plan, 0, 4, 2).first] == [0, 6]
    assert list(RankBatches(order, plan, 0, 1)) == batches(10, 0, plan, 0, 1, start_step=0)
