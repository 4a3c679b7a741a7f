"""A folder of images: classes, splits, crops, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from disttrain.config.sections.model import DataConfig
from disttrain.data import images
from disttrain.engine.kinds import build_source
from disttrain.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    """Red, green and blue images of several shapes and modes, by class."""
    for number, name in enumerate(("blue", "green", "red")):
        (tmp_path / name / "deep").mkdir(parents=True)
        pixels = np.zeros((30 + 10 * number, 40, 3), np.uint8)
        pixels[..., 2 - number] = 255
        for index in range(8):
            Image.fromarray(pixels).save(tmp_path / name / "deep" / f"{index}.png")
        Image.fromarray(pixels).convert("P").save(tmp_path / name / "palette.GIF".lower())
        (tmp_path / name / "notes.txt").write_text("no image")
        (tmp_path / name / ".hidden.png").write_text("no image")
    return tmp_path


def test_a_class_is_a_subfolder(folder):
    source = images.build(path=str(folder), size=16, valid_share=0)
    assert (source.shape, source.classes, source.valid) == ((3, 16, 16), 3, None)
    assert source.samples == "images"
    assert len(source.train) == source.record.train_samples == 27
    for channel, target in ((2, 0), (1, 1), (0, 2)):
        pixels, found = source.train[9 * target]
        assert found.item() == target
        assert (pixels.shape, pixels.dtype) == ((3, 16, 16), torch.float32)
        colour = pixels * images._STD[:, None, None] + images._MEAN[:, None, None]
        expected = torch.zeros(3, 16, 16)
        expected[channel] = 1
        torch.testing.assert_close(colour, expected, atol=0.01, rtol=0)


def test_the_name_of_a_file_decides_on_its_split(folder):
    one, other = (images.build(path=str(folder), size=4, valid_share=share) for share in (0.2, 0.4))
    assert 0 < len(one.valid) < len(other.valid) < 27
    assert len(one.train) + len(one.valid) == 27
    held_out, more = set(one.valid._names.tolist()), set(other.valid._names.tolist())
    assert held_out < more
    assert not held_out & set(one.train._names.tolist())


def test_validation_images_are_always_the_same_and_training_images_vary(folder):
    noise = np.random.default_rng(0).integers(0, 255, (50, 60, 3), np.uint8)
    Image.fromarray(noise).save(folder / "red" / "noise.png")
    sources = [images.build(path=str(folder), size=8, valid_share=0, augment=on) for on in (True, False)]
    crops = [[source.train[26][0] for _ in range(2)] for source in sources]
    assert not torch.equal(*crops[0])
    assert torch.equal(*crops[1])
    torch.manual_seed(1)
    first = sources[0].train[26][0]
    torch.manual_seed(1)
    assert torch.equal(sources[0].train[26][0], first), "torch's random numbers alone decide"


def test_crops_are_within_the_image():
    for width, height in ((10, 1000), (33, 7), (1, 1)):
        for _ in range(50):
            left, upper, right, lower = images.random_box(width, height)
            assert 0 <= left < right <= width + 1e-9
            assert 0 <= upper < lower <= height + 1e-9


def test_another_list_of_files_is_another_data_set(folder):
    def fingerprint():
        return build_source(DataConfig(kind="images", path=str(folder), size=4)).record.fingerprint

    before = fingerprint()
    assert fingerprint() == before
    (folder / "red" / "palette.gif").rename(folder / "red" / "renamed.gif")
    assert fingerprint() != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"path": "nowhere"},
            r"^data\.path='nowhere' is no folder; give one with a subfolder",
        ),
        ({"path": "red"}, r"^data\.path='red' holds no images in subfolders"),
        (
            {"path": ".", "valid_path": "other"},
            r"'other' has class 'pink', data\.path has not$",
        ),
    ],
)
def test_bad_folders_are_one_line(folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    (folder / "red" / "deep").rename(folder / "deep")
    (folder / "other" / "pink").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(folder / "other" / "pink" / "a.png")
    with pytest.raises(ConfigError, match=message):
        images.build(**options)


def test_a_damaged_png_is_named(folder):
    path = folder / "red" / "bad.png"
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(path)
    content = bytearray(path.read_bytes())
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)  # Image.open reads up to the first one
    content[second : second + 4] = b"\x00\x01\x02\x03"
    path.write_bytes(content)
    source = images.build(path=str(folder), size=4, valid_share=0)
    names = source.train._names.tolist()
    with pytest.raises(ConfigError, match=r"^data: '.*red/bad\.png' cannot be decoded: "):
        source.train[names.index(b"red/bad.png")]
