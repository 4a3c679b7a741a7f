"""A folder of images with a subfolder for each class, decoded by Pillow.

Training images are random crops of 8 to 100 % of the area at 3:4 to 4:3, mirrored half of the time (Szegedy
et al. 2015, arXiv:1409.4842). Validation images are the central square, with 7/8 of the shorter side. Both
are standardised by the mean and deviation of ImageNet.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import PositiveInt
from torch.utils.data import Dataset

from disttrain.config.options import Share
from disttrain.data.corpus import files_below
from disttrain.data.source import Sample, Source
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLES = "images"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_MEAN, _STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
_HASH_RANGE = 1 << 32
"""Range of the hash of a file's name, by which the validation images are chosen."""


def build(
    *,
    path: str,
    size: PositiveInt = 224,
    valid_path: str | None = None,
    valid_share: Share = 0.1,
    augment: bool = True,
) -> Source:
    """Images of shape (3, size, size) from the folders `path/<class>/`.

    Parameters
    ----------
    path : folder with a subfolder for each class; hidden files are left out.
    size : pixels on a side.
    valid_path : folder of the validation images, with the same classes.
    valid_share : share held out without `valid_path`, by a hash of the name.
    augment : crop training images at random and mirror them.

    Raises
    ------
    ConfigError : Pillow is missing, a folder holds no images, or the classes of the two folders differ.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise ConfigError("data.kind=images needs the package Pillow; install pillow") from None
    names = _names("data.path", path)
    classes = sorted({_class(name) for name in names})
    if valid_path is None:
        held_out = {name for name in names if _position(name) < valid_share}
        train, valid = [name for name in names if name not in held_out], sorted(held_out)
        valid_root = Path(path)
    else:
        train, valid, valid_root = names, _names("data.valid_path", valid_path), Path(valid_path)
        if unknown := sorted({_class(name) for name in valid} - set(classes)):
            raise ConfigError(f"data.valid_path={valid_path!r} has class {unknown[0]!r}, data.path has not")
    return Source(
        train=ImageFolder(Path(path), train, classes, size, augment),
        valid=ImageFolder(valid_root, valid, classes, size, augment=False) if valid else None,
        task="classification",
        shape=(3, size, size),
        classes=len(classes),
        record=DatasetRecord(
            name="images",
            version=f"names {hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:16]}",
        ),
    )


class ImageFolder(Dataset[Sample]):
    """Images and their classes, as a standardised tensor (3, size, size) and an int64 scalar.

    A file that cannot be decoded raises `ConfigError`, which names it.
    """

    def __init__(
        self, root: Path, names: Sequence[str], classes: Sequence[str], size: int, augment: bool
    ) -> None:
        self.root, self.size, self.augment = root, size, augment
        # arrays: loader processes share their memory, but copy each of a million Python strings
        self._names = np.array([os.fsencode(name) for name in names])
        number = {name: index for index, name in enumerate(classes)}
        self._targets = torch.tensor([number[_class(name)] for name in names], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        path = self.root / os.fsdecode(self._names[index])
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # Pillow's decoders raise many types for a damaged file
            raise ConfigError(f"data: {str(path)!r} cannot be decoded: {error}") from None
        return self._tensor(image), self._targets[index]

    def _tensor(self, image: Image) -> torch.Tensor:
        from PIL.Image import Resampling

        box = random_box(*image.size) if self.augment else central_box(*image.size)
        resized = image.resize((self.size, self.size), Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(resized))
        if self.augment and torch.rand(()) < 0.5:
            pixels = pixels.flip(1)
        return ((pixels / 255 - _MEAN) / _STD).permute(2, 0, 1).contiguous()


Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge in pixels."""


def random_box(width: int, height: int) -> Box:
    """A crop of 8 to 100 % of the area at 3:4 to 4:3, by torch's random numbers; the central square if ten
    draws do not fit."""
    for _ in range(10):
        area, ratio, across, down = torch.rand(4).tolist()
        pixels = width * height * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(4 / 3) * (2 * ratio - 1))
        wide, high = math.sqrt(pixels * aspect), math.sqrt(pixels / aspect)
        if wide <= width and high <= height:
            left, upper = across * (width - wide), down * (height - high)
            return left, upper, left + wide, upper + high
    return central_box(width, height)


def central_box(width: int, height: int) -> Box:
    """The central square with 7/8 of the shorter side."""
    side = min(width, height) * 7 / 8
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def _names(field: str, path: str) -> list[str]:
    """Sorted paths of the images relative to `path`, with `/` as separator."""
    if not Path(path).is_dir():
        raise ConfigError(f"{field}={path!r} is no folder; give one with a subfolder for each class")
    names = [name for name in files_below(Path(path)) if "/" in name and name.lower().endswith(_SUFFIXES)]
    if not names:
        raise ConfigError(
            f"{field}={path!r} holds no images in subfolders; a class is a subfolder with files "
            f"{', '.join(f'*{suffix}' for suffix in _SUFFIXES)}"
        )
    return names


def _class(name: str) -> str:
    return name.partition("/")[0]


def _position(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / _HASH_RANGE
