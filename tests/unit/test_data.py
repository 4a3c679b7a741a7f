"""Token files, digits, synthetic data, and the loader over them."""

import os
import pickle
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections.model import DataConfig
from disttrain.data import digits, synthetic, tokens
from disttrain.data.loader import GlobalOrder, RankBatches, make_loader
from disttrain.data.source import Windows
from disttrain.engine.kinds import build_source
from disttrain.errors import ConfigError

CPU = torch.device("cpu")


def first_tokens(dataset):
    return [int(dataset[i][0][0]) for i in range(len(dataset))]


# --- token files ---


def test_raw_and_npy_files_give_the_same_samples(tmp_path):
    stream = np.arange(101, dtype=np.uint16)
    stream.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", stream)
    for name in ("a.bin", "a.npy"):
        source = tokens.build(path=str(tmp_path / name), vocab=101, seq_len=10, valid_share=0.2)
        assert first_tokens(source.train) == [0, 10, 20, 30, 40, 50, 60, 70]
        assert first_tokens(source.valid) == [80, 90]
        assert source.train[3][1].tolist() == list(range(31, 41))
        assert (source.record.train_samples, source.record.valid_samples) == (8, 2)


def test_samples_never_span_two_files(tmp_path):
    for name in (3, 0, 2, 4, 1):
        np.save(tmp_path / f"{name}.npy", np.arange(100 * name, 100 * name + 25, dtype=np.int32))
    (tmp_path / "readme.md").write_text("not tokens")
    source = tokens.build(path=str(tmp_path), vocab=500, seq_len=10, valid_share=0)
    assert first_tokens(source.train) == [0, 10, 100, 110, 200, 210, 300, 310, 400, 410]
    assert source.valid is None


def test_validation_from_a_file_of_its_own(tmp_path):
    np.save(tmp_path / "train.npy", np.zeros(41, np.uint8))
    np.save(tmp_path / "valid.npy", np.ones(21, np.uint8))
    source = tokens.build(
        path=str(tmp_path / "train.npy"), valid_path=str(tmp_path / "valid.npy"), vocab=2, seq_len=10
    )
    assert first_tokens(source.train) == [0, 0, 0, 0]
    assert first_tokens(source.valid) == [1, 1]


def test_a_mapped_file_is_pickled_by_its_place(tmp_path):
    np.save(tmp_path / "big.npy", np.arange(100_000) % 50_000)
    windows = Windows(np.load(tmp_path / "big.npy", mmap_mode="r"), 100)
    pickled = pickle.dumps(windows)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert len(copy) == len(windows)
    assert copy[7][1].equal(windows[7][1])


def test_windows_in_memory_survive_pickling():
    windows = Windows(np.arange(50, dtype=np.uint8), 7)
    assert pickle.loads(pickle.dumps(windows))[2][0].equal(windows[2][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "gone.npy"}, r"data\.path='.*gone\.npy' does not exist"),
        ({"path": "empty"}, r"holds no \*\.npy or \*\.bin files"),
        ({"path": "a.npy", "vocab": 50}, r"data\.vocab=50, but a\.npy holds token 99"),
        (
            {"path": "a.npy", "seq_len": 100},
            r"data\.seq_len=100 needs 101 tokens, but token file a\.npy has 100",
        ),
        ({"path": "matrix.npy"}, r"float64 of shape \(2, 2\); needed: integers in one dimension"),
        ({"path": "a.npy", "valid_path": "nope"}, r"data\.valid_path='.*nope' does not exist"),
        ({"path": "nothing.bin"}, r"cannot map token file"),
    ],
)
def test_bad_token_files_are_one_line(tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.bin").touch()
    np.save(tmp_path / "a.npy", np.arange(100))
    np.save(tmp_path / "matrix.npy", np.zeros((2, 2)))
    paths = {key: str(tmp_path / value) for key, value in options.items() if "path" in key}
    with pytest.raises(ConfigError, match=message) as caught:
        tokens.build(**{"vocab": 100, "seq_len": 10, **options, **paths})
    assert "\n" not in str(caught.value)


# --- digits ---


def test_digits_are_split_by_class_and_fixed():
    source = digits.build()
    assert (len(source.train), len(source.valid)) == (1433, 364)
    assert (source.shape, source.classes, source.task) == ((1, 8, 8), 10, "classification")
    train, valid = torch.bincount(source.train.targets), torch.bincount(source.valid.targets)
    assert ((valid / (train + valid) - 0.2).abs() < 0.01).all()
    assert source.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert source.train.inputs.std().item() == pytest.approx(1, abs=1e-5)
    assert digits.build().record == source.record


def test_digits_can_be_enlarged():
    source = digits.build(size=32)
    image, label = source.train[0]
    assert image.shape == source.shape == (1, 32, 32)
    assert label.dtype == torch.int64


# --- synthetic ---


@pytest.mark.parametrize("task", ["classification", "language"])
def test_synthetic_samples_depend_on_seed_and_index_alone(task):
    one, two = synthetic.build(task=task), synthetic.build(task=task)
    other = synthetic.build(task=task, seed=1)
    assert one.train[17][0].equal(two.train[17][0])
    assert not one.train[17][0].equal(one.train[18][0])
    assert not one.train[17][0].equal(other.train[17][0])
    assert not one.valid[0][0].equal(one.train[0][0])


def test_synthetic_classes_differ_beyond_noise():
    """The mean image of a class in one half of the samples is nearest to its own in the other half."""
    source = synthetic.build(shape=(64,), classes=5, samples=200)
    images = torch.stack([source.train[i][0] for i in range(200)]).view(2, 20, 5, 64)
    one, other = images.mean(1)
    assert torch.cdist(one, other).argmin(1).tolist() == [0, 1, 2, 3, 4]


def test_synthetic_takes_any_shape():
    source = synthetic.build(shape=(4, 5), classes=3, samples=7, valid_samples=0)
    image, label = source.train[5]
    assert image.shape == (4, 5)
    assert label == 5 % 3
    assert source.valid is None
    assert len(source.train) == 7


def test_synthetic_language_is_within_its_vocabulary():
    source = synthetic.build(task="language", vocab=11, seq_len=20, samples=100)
    inputs, targets = source.train[42]
    assert inputs.shape == targets.shape == (20,)
    assert inputs[1:].equal(targets[:-1])
    assert max(int(source.train[i][0].max()) for i in range(100)) == 10


# --- the loader ---


class WhoLoads(Dataset):
    """Sample i is (i, id of the process that made it)."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(index), torch.tensor(os.getpid())


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_keeps_the_order_of_the_sampler_across_epochs(workers):
    order, plan = GlobalOrder(64, 0), BatchPlan(local=6, accumulation=1, world=2)
    batches = RankBatches(order, plan, rank=1, steps=20, start_step=2)
    loaded = [
        inputs.tolist() for inputs, _ in make_loader(WhoLoads(), batches, DataConfig(workers=workers), CPU)
    ]
    assert loaded == list(batches)
    assert len(loaded) == 18


class Indices(Dataset):
    """Sample i is i."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor(index)


plans = st.builds(BatchPlan, local=st.integers(1, 4), accumulation=st.integers(1, 2), world=st.integers(1, 3))


@settings(max_examples=8, deadline=None)
@given(
    samples=st.integers(1, 13),
    plan=st.builds(
        BatchPlan, local=st.integers(1, 4), accumulation=st.integers(1, 2), world=st.integers(1, 3)
    ),
    workers=st.integers(0, 2),
)
def test_each_sample_is_loaded_once_per_epoch_by_any_number_of_workers(samples, plan, workers):
    dataset, config = Indices(samples), DataConfig(workers=workers)
    loaded = [
        index
        for rank in range(plan.world)
        for batch in make_loader(
            dataset, RankBatches(GlobalOrder(samples, 3), plan, rank, steps=samples), config, CPU
        )
        for index in batch.tolist()
    ]
    assert sorted(loaded) == sorted([*range(samples)] * plan.global_), "an epoch for each sample of a step"


def test_loader_processes_outlive_stop_signals():
    batches = [[index] for index in range(40)]
    loader = iter(make_loader(WhoLoads(), batches, DataConfig(workers=1, prefetch=2), CPU))
    worker = int(next(loader)[1])
    assert worker != os.getpid()
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
    rest = [(int(inputs), int(pid)) for inputs, pid in loader]
    assert rest == [(index, worker) for index in range(1, 40)]


def test_batches_are_pinned_for_cuda_alone():
    assert make_loader(WhoLoads(), [[0]], DataConfig(), torch.device("cuda")).pin_memory
    assert not make_loader(WhoLoads(), [[0]], DataConfig(), CPU).pin_memory


def test_arrays_fetch_a_batch_as_its_samples():
    train = digits.build().train
    inputs, targets = default_collate(train.__getitems__([3, 1, 3]))
    assert inputs.equal(torch.stack([train[3][0], train[1][0], train[3][0]]))
    assert targets.equal(torch.stack([train[3][1], train[1][1], train[3][1]]))


# --- hashes of data ---


def fingerprint(**data):
    return build_source(DataConfig(**data)).record.fingerprint


def test_the_fingerprint_changes_with_the_training_samples_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(101))
    file = {"kind": "tokens", "path": str(tmp_path / "a.npy"), "vocab": 101, "seq_len": 10}
    made = {"kind": "synthetic", "task": "language", "samples": 50}
    foreign = {"kind": "tests.support.small_models:source", "samples": 40}
    variants = [
        file, {**file, "seq_len": 5}, {**file, "valid_share": 0.2},
        made, {**made, "seed": 1}, {**made, "samples": 51}, {**made, "vocab": 7}, {**made, "seq_len": 5},
        {**made, "task": "classification"}, {**made, "task": "classification", "shape": [5]},
        foreign, {**foreign, "samples": 41},
    ]  # fmt: skip
    found = [fingerprint(**variant) for variant in variants]
    assert None not in found
    assert len(set(found)) == len(found)
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes())
    assert fingerprint(**{**file, "path": str(tmp_path / "b.npy")}) == found[0]
    assert fingerprint(**made, delay_s=0.1, valid_samples=3, workers=2) == found[3]
    assert fingerprint(**foreign) == fingerprint(**foreign)


def test_synthetic_data_of_another_seed_has_another_hash():
    assert synthetic.build(seed=1).record.sha256 != synthetic.build(seed=2).record.sha256
    assert synthetic.build(seed=1).record.sha256 == synthetic.build(seed=1, samples=7).record.sha256
