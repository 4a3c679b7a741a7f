"""Batches: each sample once per epoch, the same global batches at every world size, resumed as the tail."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections.model import DataConfig
from disttrain.data.loader import GlobalOrder, RankBatches, make_loader
from disttrain.errors import ConfigError

CPU = torch.device("cpu")
counts = st.integers(1, 60)
seeds = st.integers(0, 5)
steps = st.integers(0, 12)
plans = st.builds(BatchPlan, local=st.integers(1, 4), accumulation=st.integers(1, 3), world=st.integers(1, 4))


def batches(count, seed, plan, rank, steps, start_step=0):
    return list(RankBatches(GlobalOrder(count, seed), plan, rank, steps, start_step))


def stream(count, seed, length):
    return GlobalOrder(count, seed).at(np.arange(length))


def test_an_epoch_is_the_permutation_of_numpy():
    """Runs resume in the order in which they began, whatever the version of this package."""
    expected = [np.random.default_rng([3, epoch]).permutation(7) for epoch in range(3)]
    assert np.array_equal(stream(7, 3, 21), np.concatenate(expected))


def test_an_epoch_is_permuted_once(monkeypatch):
    permuted, generator = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: permuted.append(seed) or generator(seed))
    read = batches(1000, 3, BatchPlan(local=5, accumulation=1, world=1), 0, 400)
    assert {type(index) for batch in read for index in batch} == {int}
    assert permuted == [(3, 0), (3, 1)]


@given(counts, seeds, plans)
def test_an_epoch_has_each_sample_exactly_once_over_all_ranks(count, seed, plan):
    """After `plan.global_` epochs a step ends where an epoch does."""
    read = [
        i for rank in range(plan.world) for batch in batches(count, seed, plan, rank, count) for i in batch
    ]
    assert sorted(read) == sorted([*range(count)] * plan.global_)


@given(counts, seeds, st.sampled_from([(1, 12), (2, 3), (3, 4), (4, 1), (6, 2)]), st.integers(0, 20))
def test_every_world_size_forms_the_same_global_batch(count, seed, layout, step):
    world, local = layout
    plan = BatchPlan(local, 12 // (world * local), world)
    spread = [
        index
        for rank in range(world)
        for batch in batches(count, seed, plan, rank, step + 1)[step * plan.accumulation :]
        for index in batch
    ]
    assert sorted(spread) == sorted(stream(count, seed, 12 * (step + 1))[12 * step :])


@given(counts, seeds, plans, steps, steps)
def test_a_resumed_run_reads_the_tail(count, seed, plan, end, start_step):
    sampler = RankBatches(GlobalOrder(count, seed), plan, plan.world - 1, end, start_step)
    drawn = list(sampler)
    assert len(sampler) == len(drawn)
    assert drawn == batches(count, seed, plan, plan.world - 1, end)[start_step * plan.accumulation :]
    assert sampler.first == start_step * plan.accumulation


def test_a_rank_reads_its_own_part_of_each_micro_step():
    plan = BatchPlan(local=2, accumulation=2, world=3)
    order = stream(100, 0, 24).tolist()
    # step 0: micro-step 0 covers 0..5, micro-step 1 covers 6..11; rank 1 reads the second pair of each
    assert batches(100, 0, plan, 1, 2) == [order[2:4], order[8:10], order[14:16], order[20:22]]


def test_no_samples_are_refused():
    with pytest.raises(ConfigError, match="the training split has no samples"):
        GlobalOrder(0, 0)


# --- the loader ---


class Recording(Dataset):
    """Sample i is i, the process that made it, and a random number of each generator."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        drawn = [torch.rand(()), torch.tensor(random.random()), torch.tensor(np.random.rand())]
        return torch.tensor(index), torch.tensor(os.getpid()), torch.stack([each.double() for each in drawn])


def loader(batches, workers=1, device=CPU, **options):
    return make_loader(Recording(), batches, DataConfig(workers=workers), device, **options)


@settings(max_examples=5, deadline=None)
@given(plan=plans, workers=st.integers(0, 2))
def test_any_number_of_processes_keeps_the_order_of_the_sampler(plan, workers):
    sampler = RankBatches(GlobalOrder(13, 0), plan, plan.world - 1, steps=7, start_step=2)
    assert [indices.tolist() for indices, *_ in loader(sampler, workers)] == list(sampler)


def test_random_numbers_depend_on_seed_and_number_of_the_batch_alone():
    def drawn(seed, numbers, workers):
        found = loader([[number] for number in numbers], workers, seed=(seed,), first=numbers[0])
        return [values.flatten().tolist() for *_, values in found]

    whole = drawn(1, [0, 1, 2, 3], 2)
    assert drawn(1, [2, 3], 1) == whole[2:]
    assert len({value for batch in [*whole, *drawn(2, [0], 1)] for value in batch}) == 15


def test_loader_processes_outlive_stop_signals():
    found = iter(loader([[index] for index in range(40)]))
    worker = int(next(found)[1])
    assert worker != os.getpid()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker, number)
    assert [(int(index), int(pid)) for index, pid, _ in found] == [(index, worker) for index in range(1, 40)]


def test_batches_are_pinned_for_cuda_alone():
    assert loader([[0]], 0, torch.device("cuda")).pin_memory
    assert not loader([[0]], 0).pin_memory
