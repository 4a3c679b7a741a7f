"""The data that a run trains on."""

from __future__ import annotations

from disttrain.records.base import Record


class DatasetRecord(Record):
    """What was trained on, by version and content, never by path."""

    name: str
    version: str | None
    sha256: str | None
    train_samples: int
    valid_samples: int
    bytes: int | None = None
    unigram_entropy_bits: float | None = None
    """Text: entropy of the training split's bytes taken one by one, in bits per byte."""
