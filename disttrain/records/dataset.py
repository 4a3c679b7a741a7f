"""Record of a dataset."""

from __future__ import annotations

from disttrain.records.base import Record


class DatasetRecord(Record):
    """Dataset of a run by version and content hash, without its path."""

    name: str
    version: str | None
    sha256: str | None
    train_samples: int
    valid_samples: int
    bytes: int | None = None
    unigram_entropy_bits: float | None = None
    """Text: unigram entropy of the training split, in bits per byte."""
