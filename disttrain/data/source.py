"""Data source: the result of every data kind, with its datasets and their description.

A dataset is map-style: `ds[i]` is `(input, target)` without a batch dimension. PyTorch's loader prefers
`__getitems__` where it is defined: it returns a list of such pairs from a single copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord

Task = Literal["language", "classification", "regression"]
Sample = tuple[Tensor, Tensor]
Batch = tuple[Tensor, Tensor]
"""Samples stacked along a first dimension."""


@dataclass(frozen=True)
class Source:
    """A data source: training and validation split, and the shapes from which a model is built."""

    train: Dataset[Sample]
    valid: Dataset[Sample] | None
    task: Task
    shape: tuple[int, ...]
    """Shape of one input, without the batch dimension: `(seq_len,)` for language."""
    classes: int
    """Size of the vocabulary (language), number of classes, or number of outputs (regression)."""
    record: DatasetRecord
    tokens_per_sample: int | None = None
    """Predicted tokens in one sample; None where samples are not token sequences."""
    files: tuple[Path, ...] = ()
    """Files whose content hash is the record's `sha256`; if that is null, one rank computes it."""
    bytes_per_token: float | None = None
    """Mean bytes of text per token, for a loss in bits per byte; None where unknown."""

    @property
    def images(self) -> bool:
        """Whether a sample is an image of shape (channels, height, width) to classify."""
        return self.task == "classification" and len(self.shape) == 3


class Arrays(Dataset[Sample]):
    """Samples in memory: two tensors whose first dimension is the sample."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Sample:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        rows = torch.as_tensor(indices)
        return list(zip(self.inputs[rows], self.targets[rows], strict=True))


class Windows(Dataset[Sample]):
    """A token stream cut into samples of L = `seq_len` tokens.

    Sample i has the input tokens [i*L, (i+1)*L), and the next token of each as target; both have shape (L,)
    and dtype int64. Inputs do not overlap, so every token but the first is predicted once. A remainder of
    less than one window is not used. Tokens keep their stored dtype until they are read.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int) -> None:
        self.tokens = tokens
        self.seq_len = seq_len
        self._rows = self._windows()

    def _windows(self) -> np.ndarray:
        if len(self.tokens) <= self.seq_len:
            return np.empty((0, self.seq_len + 1), self.tokens.dtype)
        return np.lib.stride_tricks.sliding_window_view(self.tokens, self.seq_len + 1)[:: self.seq_len]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        window = torch.from_numpy(self._rows[index].astype(np.int64))
        return window[:-1], window[1:]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        windows = torch.from_numpy(self._rows[indices].astype(np.int64))
        return list(zip(windows[:, :-1], windows[:, 1:], strict=True))

    def __getstate__(self) -> dict[str, Any]:
        # A spawned loader process unpickles the dataset: pickle the location of a mapped file, not its
        # content.
        tokens: Any = self.tokens
        if isinstance(tokens, np.memmap):
            tokens = {
                "filename": tokens.filename,
                "dtype": tokens.dtype,
                "offset": tokens.offset,
                "shape": tokens.shape,
            }
        return {"tokens": tokens, "seq_len": self.seq_len}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tokens = state["tokens"]
        self.tokens = np.memmap(**tokens, mode="r") if isinstance(tokens, dict) else tokens
        self.seq_len = state["seq_len"]
        self._rows = self._windows()


def windows_or_refuse(tokens: np.ndarray, seq_len: int, what: str) -> Windows:
    """The `Windows` of `tokens`. Raises `ConfigError` if `what`, such as "the validation split", fills
    none."""
    windows = Windows(tokens, seq_len)
    if not len(windows):
        raise ConfigError(
            f"data.seq_len={seq_len} needs {seq_len + 1} tokens, but {what} has {len(tokens)}; "
            "use a smaller data.seq_len or more data"
        )
    return windows


def source_fingerprint(source: Source, kind: str, options: Mapping[str, Any]) -> str:
    """`DatasetRecord.fingerprint` of the source that the data kind `kind` built from `options`."""
    record = source.record
    content = record.sha256 or [kind, record.version, dict(sorted(options.items()))]
    described = [content, source.task, source.shape, source.classes, record.train_samples]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()


def sample_count(dataset: Dataset[Sample] | None) -> int:
    """Number of samples; 0 for no dataset."""
    return 0 if dataset is None else len(dataset)  # type: ignore[arg-type]
