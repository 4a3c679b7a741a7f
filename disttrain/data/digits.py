"""Digits of scikit-learn: 1,797 grey-scale images of 8x8 pixels in ten classes.

Every fifth image of each class is held out for validation: always the same 364.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt

from disttrain.data.source import Arrays, Source
from disttrain.records.dataset import DatasetRecord

SAMPLES = "images"
_VALID_EVERY = 5


def build(*, size: PositiveInt = 8) -> Source:
    """Handwritten digits of shape (1, size, size), standardised.

    Parameters
    ----------
    size : pixels on a side; other sizes than 8 are resized.
    """
    import sklearn  # takes half a second, so imported only for this data kind
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    held_out = np.zeros(len(labels), bool)
    for digit in range(10):
        held_out[np.flatnonzero(labels == digit)[::_VALID_EVERY]] = True
    pixels = torch.from_numpy(images.astype(np.float32)).view(-1, 1, 8, 8)
    std, mean = torch.std_mean(pixels[~held_out])
    pixels = (pixels - mean) / std
    if size != 8:
        pixels = F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)
    targets = torch.from_numpy(labels.astype(np.int64))
    return Source(
        train=Arrays(pixels[~held_out], targets[~held_out]),
        valid=Arrays(pixels[held_out], targets[held_out]),
        task="classification",
        shape=(1, size, size),
        classes=10,
        record=DatasetRecord(
            name="digits",
            version=f"scikit-learn {sklearn.__version__}",
            sha256=hashlib.sha256(
                images.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()
            ).hexdigest(),
        ),
    )
