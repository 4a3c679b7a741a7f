"""Each sample once per epoch on one rank; the same global batches at every world size; resume is the tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.batch_plan import BatchPlan
from disttrain.data.sampler import GlobalOrder, RankBatches
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
        assert sorted(order.take(epoch * count, (epoch + 1) * count)) == list(range(count))


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
    stream = GlobalOrder(100, 0).take(0, 24).tolist()
    # step 0: micro-step 0 covers 0..5, micro-step 1 covers 6..11; rank 1 reads the second pair of each
    assert batches(100, 0, plan, 1, 2) == [stream[2:4], stream[8:10], stream[14:16], stream[20:22]]


def test_seed_and_epoch_change_the_order():
    order = GlobalOrder(50, 0)
    first, second = order.take(0, 50).tolist(), order.take(50, 100).tolist()
    assert first != second
    assert first != GlobalOrder(50, 1).take(0, 50).tolist()
    assert first == GlobalOrder(50, 0).take(0, 50).tolist()


def test_no_samples_is_refused():
    with pytest.raises(ConfigError, match="no samples"):
        GlobalOrder(0, 0)
