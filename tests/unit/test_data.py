"""Token files, digits, synthetic data and images: samples, splits, hashes, and input that is refused."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from disttrain.config.sections.model import DataConfig
from disttrain.data import digits, images, synthetic, tokens
from disttrain.data.source import Windows
from disttrain.data.tokens import content_sha256
from disttrain.engine.kinds import build_source
from disttrain.errors import ConfigError


def first_tokens(dataset):
    return [int(dataset[i][0][0]) for i in range(len(dataset))]


# --- token files ---


@pytest.mark.parametrize("name", ["a.bin", "a.npy"])
def test_a_raw_and_an_npy_file_are_cut_into_windows(tmp_path, name):
    stream = np.arange(101, dtype=np.uint16)
    stream.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", stream)
    source = tokens.build(path=str(tmp_path / name), vocab=101, seq_len=10, valid_share=0.2)
    assert first_tokens(source.train) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert first_tokens(source.valid) == [80, 90]
    assert source.train[3][1].tolist() == list(range(31, 41))


def test_files_of_a_folder_are_read_by_name_and_no_sample_spans_two(tmp_path):
    for name in (3, 0, 2, 4, 1):
        np.save(tmp_path / f"{name}.npy", np.arange(100 * name, 100 * name + 25, dtype=np.int32))
    (tmp_path / "readme.md").write_text("not tokens")
    paths = {"path": str(tmp_path), "valid_path": str(tmp_path / "2.npy")}
    source = tokens.build(**paths, vocab=500, seq_len=10)
    assert first_tokens(source.train) == [0, 10, 100, 110, 200, 210, 300, 310, 400, 410]
    assert first_tokens(source.valid) == [200, 210]


@pytest.mark.parametrize("mapped", [True, False])
def test_windows_survive_pickling_and_a_mapped_file_by_its_location(tmp_path, mapped):
    np.save(tmp_path / "big.npy", np.arange(100_000) % 50_000)
    windows = Windows(np.load(tmp_path / "big.npy", mmap_mode="r" if mapped else None), 100)
    pickled = pickle.dumps(windows)
    assert (len(pickled) < 1000) is mapped
    copy = pickle.loads(pickled)
    assert len(copy) == len(windows)
    assert copy[7][1].equal(windows[7][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "gone.npy"}, r"data\.path='.*gone\.npy' does not exist"),
        ({"path": "empty"}, r"data\.path='.*empty' holds no"),
        ({"path": "a.npy", "vocab": 99}, r"data\.vocab=99, but a\.npy holds token 99"),
        ({"path": "a.npy", "vocab": None}, r"data\.vocab is needed"),
        ({"path": "a.npy", "seq_len": 100}, r"data\.seq_len=100 needs 101 tokens"),
        ({"path": "matrix.npy"}, "integers in one dimension"),
        ({"path": "a.npy", "valid_path": "nope"}, r"data\.valid_path='.*nope' does not exist"),
        ({"path": "nothing.bin"}, "cannot map token file"),
    ],
)
def test_bad_token_files_are_refused(tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.bin").touch()
    np.save(tmp_path / "a.npy", np.arange(100))
    np.save(tmp_path / "matrix.npy", np.zeros((2, 2)))
    paths = {key: str(tmp_path / value) for key, value in options.items() if "path" in key}
    with pytest.raises(ConfigError, match=message):
        tokens.build(**{"vocab": 100, "seq_len": 10, **options, **paths})


# --- images ---


@pytest.fixture
def folder(tmp_path):
    """Nine images of one colour in each class, of several shapes and modes, beside files that are none."""
    for number, name in enumerate(("blue", "green", "red")):
        deep = tmp_path / name / "deep"
        deep.mkdir(parents=True)
        pixels = np.zeros((30 + 10 * number, 40, 3), np.uint8)
        pixels[..., 2 - number] = 255
        for index in range(8):
            Image.fromarray(pixels).save(deep / f"{index}.png")
        Image.fromarray(pixels).convert("P").save(deep / "palette.gif")
        (deep / "notes.txt").write_text("no image")
        (deep / ".hidden.png").write_text("no image")
    return tmp_path


def images_of(folder, **options):
    return images.build(path=str(folder), **{"size": 16, "valid_share": 0} | options)


def test_a_class_of_images_is_a_subfolder(folder):
    source = images_of(folder)
    assert (source.shape, source.classes, source.valid, source.samples) == ((3, 16, 16), 3, None, "images")
    assert len(source.train) == 27
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])  # of ImageNet
    for index in (0, 9, 18):
        pixels, target = source.train[index]
        assert target.item() == index // 9
        colour = torch.eye(3)[2 - index // 9]
        assert (pixels - ((colour - mean) / std)[:, None, None]).abs().max() < 0.05


def test_the_name_of_an_image_decides_on_its_split(folder):
    held_out = []
    for share in (0.2, 0.4):
        source = images_of(folder, valid_share=share)
        assert len(source.train) + len(source.valid) == 27
        held_out.append(set(source.valid._names.tolist()))
        assert not held_out[-1] & set(source.train._names.tolist())
    assert set() < held_out[0] < held_out[1]


def test_training_images_vary_by_the_random_numbers_of_torch_and_validation_images_do_not(folder):
    noise = np.random.default_rng(0).integers(0, 255, (50, 60, 3), np.uint8)
    Image.fromarray(noise).save(folder / "red" / "noise.png")

    def crop(seed, source):
        torch.manual_seed(seed)
        return source[27][0]

    train, plain = images_of(folder).train, images_of(folder, augment=False).train
    valid = images_of(folder, valid_path=str(folder)).valid
    assert not torch.equal(crop(1, train), crop(2, train))
    assert torch.equal(crop(1, train), crop(1, train))
    for source in (plain, valid):
        assert torch.equal(crop(1, source), crop(2, source))


@pytest.mark.parametrize(("width", "height"), [(10, 1000), (33, 7), (1, 1)])
def test_crops_are_within_the_image(width, height):
    for _ in range(50):
        left, upper, right, lower = images.random_box(width, height)
        assert 0 <= left < right <= width + 1e-9
        assert 0 <= upper < lower <= height + 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, r"^data\.path='nowhere' is no folder"),
        ({"path": "red/deep"}, r"^data\.path='red/deep' holds no images in subfolders"),
        ({"path": ".", "valid_path": "other"}, r"'other' has class 'pink', data\.path has not$"),
    ],
)
def test_bad_folders_of_images_are_refused(folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    (folder / "other" / "pink").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(folder / "other" / "pink" / "a.png")
    with pytest.raises(ConfigError, match=message):
        images.build(**options)


def test_a_damaged_png_is_named(folder):
    path = folder / "red" / "z.png"
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)  # Image.open reads up to the first one
    path.write_bytes(content[:second] + b"\x00\x01\x02\x03" + content[second + 4 :])
    with pytest.raises(ConfigError, match=r"^data: '.*red/z\.png' cannot be decoded: "):
        images_of(folder).train[27]


# --- digits and synthetic data ---


def test_digits_are_split_by_class_and_standardised():
    source = digits.build()
    assert (len(source.train), len(source.valid)) == (1433, 364)
    train, valid = torch.bincount(source.train.targets), torch.bincount(source.valid.targets)
    assert ((valid / (train + valid) - 0.2).abs() < 0.01).all()
    assert source.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert source.train.inputs.std().item() == pytest.approx(1, abs=1e-5)
    larger = digits.build(size=32)
    assert larger.train[0][0].shape == larger.shape == (1, 32, 32)


@pytest.mark.parametrize("task", ["classification", "language"])
def test_synthetic_samples_depend_on_seed_and_index_alone(task):
    one, same, other = (synthetic.build(task=task, seed=seed) for seed in (0, 0, 1))
    sample = one.train[17][0]
    assert sample.equal(same.train[17][0])
    assert not any(sample.equal(each) for each in (one.train[18][0], other.train[17][0], one.valid[17][0]))


def test_synthetic_images_have_the_shape_and_classes_in_turn():
    source = synthetic.build(shape=(4, 5), classes=5, samples=7, valid_samples=0)
    assert source.valid is None
    assert [int(label) for _, label in map(source.train.__getitem__, range(7))] == [0, 1, 2, 3, 4, 0, 1]
    assert source.train[6][0].shape == (4, 5)


def test_synthetic_sentences_are_within_their_vocabulary():
    train = synthetic.build(task="language", vocab=11, seq_len=20, samples=100).train
    inputs, targets = train[42]
    assert inputs[1:].equal(targets[:-1])
    assert (len(train), len(inputs), max(int(train[i][0].max()) for i in range(100))) == (100, 20, 10)


@pytest.mark.parametrize("kind", ["digits", "tokens"])
def test_a_batch_fetched_at_once_equals_its_samples(tmp_path, kind):
    np.save(tmp_path / "a.npy", np.arange(101))
    train = digits.build().train if kind == "digits" else Windows(np.arange(101), 10)
    rows = [3, 1, 3]
    at_once, one_by_one = default_collate(train.__getitems__(rows)), default_collate([train[i] for i in rows])
    assert all(torch.equal(*pair) for pair in zip(at_once, one_by_one, strict=True))


# --- hashes of data ---


def fingerprint(**data):
    return build_source(DataConfig(**data)).record.fingerprint


def test_the_fingerprint_changes_with_the_training_samples_alone(tmp_path, folder):
    np.save(tmp_path / "a.npy", np.arange(101))
    file = {"kind": "tokens", "path": str(tmp_path / "a.npy"), "vocab": 101, "seq_len": 10}
    made = {"kind": "synthetic", "task": "language", "samples": 50}
    foreign = {"kind": "tests.support.small_models:source", "samples": 40}
    pictures = {"kind": "images", "path": str(folder), "size": 4}
    variants = [
        file, {**file, "seq_len": 5}, {**file, "valid_share": 0.2},
        made, {**made, "seed": 1}, {**made, "samples": 51}, {**made, "vocab": 7}, {**made, "seq_len": 5},
        {**made, "task": "classification"}, {**made, "task": "classification", "shape": [5]},
        foreign, {**foreign, "samples": 41}, pictures,
    ]  # fmt: skip
    found = [fingerprint(**variant) for variant in variants]
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes())
    assert fingerprint(**{**file, "path": str(tmp_path / "b.npy")}) == found[0]
    assert fingerprint(**made, delay_s=0.1, valid_samples=3, workers=2) == found[3]
    assert [fingerprint(**foreign), fingerprint(**pictures)] == [found[10], found[12]]
    (folder / "red" / "deep" / "0.png").rename(folder / "red" / "deep" / "renamed.png")
    assert len({*found, fingerprint(**pictures), None}) == len(found) + 2


def files(folder, stream, sizes):
    paths = [folder / f"{number}.bin" for number in range(len(sizes))]
    for path, part in zip(paths, np.split(stream, np.cumsum(sizes)[:-1]), strict=True):
        path.write_bytes(part.astype(np.uint8).tobytes())
    return paths


def test_the_content_hash_covers_sizes_and_64_places(tmp_path):
    """Of one file of up to 256 KiB, each byte counts."""
    small = np.arange(2000) % 251
    sizes = [400, 1200, 30, 0, 370]
    assert content_sha256(files(tmp_path, small, [2000])) != content_sha256(files(tmp_path, small, sizes))
    cases = [([2000], at, True) for at in (0, 99, 1_999)]
    cases += [(sizes, at, True) for at in (399, 500, 1_700, 1_999)]
    last_place = (1 << 20) * 63 // 64
    cases += [([1 << 20], at, at != 4096) for at in (0, 4095, 4096, last_place)]
    for lengths, at, counts in cases:
        stream = np.arange(sum(lengths)) % 251
        before = content_sha256(files(tmp_path, stream, lengths))
        stream[at] = 255
        assert (content_sha256(files(tmp_path, stream, lengths)) != before) is counts


def test_a_token_file_is_identified_by_its_content(tmp_path):
    [path] = files(tmp_path, np.arange(1000) % 251, [1000])
    source = tokens.build(path=str(path), vocab=256, dtype="uint8", seq_len=10)
    assert source.record.sha256 == source.files_sha256 == content_sha256([path])
