"""Dataset of a run: the shape from which a model is built, its record, and the manifest of packed tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from disttrain.errors import ConfigError, either
from disttrain.records.base import Record

Task = Literal["language", "classification", "regression"]


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """The properties of a data source from which a model is built."""

    task: Task
    shape: tuple[int, ...]
    """Shape of one input, without the batch dimension: `(seq_len,)` for language."""
    classes: int
    """Size of the vocabulary (language), number of classes, or number of outputs (regression)."""
    tokens_per_sample: int | None = None
    """Predicted tokens in one sample; None where samples are not token sequences."""

    @property
    def samples(self) -> Literal["tokens", "images", "numbers"]:
        """What a sample is; an image has the shape (channels, height, width) and a class."""
        if self.task == "language":
            return "tokens"
        return "images" if self.task == "classification" and len(self.shape) == 3 else "numbers"

    def require(self, kind: str, takes: Collection[str]) -> None:
        """Raise `ConfigError` unless a model of this kind takes the samples."""
        if self.samples not in takes:
            raise ConfigError(
                f"model.kind={kind} takes {either(takes)}, but data.kind gives {self.task} of inputs "
                f"{self.shape}"
            )


class DatasetRecord(Record):
    """Dataset of a run by version and hashes, without its path."""

    name: str
    version: str | None = None
    sha256: str | None = None
    """SHA-256 of the content (files: of their sizes and of 64 places), or of the parameters that generate it;
    null if the source gives none."""
    fingerprint: str | None = None
    """SHA-256 over `sha256` (where null: over the options of the data source), and shape and number of the
    training samples. Equal for equal training samples."""
    train_samples: int = 0
    """Counted when the run builds its source, as the next one."""
    valid_samples: int = 0
    bytes: int | None = None
    unigram_entropy_bits: float | None = None
    """Text: unigram entropy of the training split, in bits per byte."""


MANIFEST, TOKENS = "manifest.json", "tokens.bin"
"""Names of the two files of a packed folder."""


class PackedTokens(Record):
    """`manifest.json` beside `tokens.bin`, as `python -m disttrain.data pack` writes it."""

    tokenizer: str
    """`bytes`, or the name of the tokenizer's folder."""
    dtype: Literal["uint8", "uint16", "uint32"]
    """Dtype of the tokens, in the byte order of the machine (little-endian)."""
    vocab: int
    separator: int
    """Token that ends each document."""
    tokens: int
    """Number of tokens, separators included."""
    documents: int
    text_bytes: int
    """Bytes of the text, in UTF-8."""
    sha256: str
    """SHA-256 of `tokens.bin`."""
