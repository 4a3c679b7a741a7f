"""Record of a dataset."""

from __future__ import annotations

from disttrain.records.base import Record


class DatasetRecord(Record):
    """Dataset of a run by version and hashes, without its path."""

    name: str
    version: str | None
    sha256: str | None
    """SHA-256 of the content (files: of their sizes and of 64 places), or of the parameters that generate it;
    null if the source gives none."""
    fingerprint: str | None = None
    """SHA-256 over `sha256` (where null: over the options of the data source), and shape and number of the
    training samples. Equal for equal training samples."""
    train_samples: int
    valid_samples: int
    bytes: int | None = None
    unigram_entropy_bits: float | None = None
    """Text: unigram entropy of the training split, in bits per byte."""
