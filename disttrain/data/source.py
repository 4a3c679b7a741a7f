"""Data source: what `build(**options) -> Source` of every kind of data returns.

A new kind is a file of this folder, or any `package.module:name`; its keyword arguments are options of the
config.

A dataset is map-style: `ds[i]` is `(input, target)` without a batch dimension. PyTorch's loader prefers
`__getitems__` where it is defined: it returns a list of such pairs from a single copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord, DataShape

Sample = tuple[Tensor, Tensor]
Batch = tuple[Tensor, Tensor]
"""Samples stacked along a first dimension."""


@dataclass(frozen=True, kw_only=True)
class Source(DataShape):
    """A data source: training and validation split, and the shape of their samples."""

    train: Dataset[Sample]
    valid: Dataset[Sample] | None = None
    record: DatasetRecord
    files_sha256: str | None = None
    """`content_sha256` of the files of this node, which the ranks compare; None without files."""
    bytes_per_token: float | None = None
    """Mean bytes of text per token, for a loss in bits per byte; None where unknown."""


@dataclass(eq=False)
class Arrays(Dataset[Sample]):
    """Samples in memory: two tensors whose first dimension is the sample."""

    inputs: Tensor
    targets: Tensor

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

    Raises `ConfigError` if `what`, such as "the validation split", fills no sample.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int, what: str = "the data") -> None:
        if len(tokens) <= seq_len:
            raise ConfigError(
                f"data.seq_len={seq_len} needs {seq_len + 1} tokens, but {what} has {len(tokens)}; "
                "use a smaller data.seq_len or more data"
            )
        self.tokens = tokens
        self.seq_len = seq_len
        self._rows = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::seq_len]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        window = torch.from_numpy(self._rows[index].astype(np.int64))
        return window[:-1], window[1:]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        windows = torch.from_numpy(self._rows[indices].astype(np.int64))
        return list(zip(windows[:, :-1], windows[:, 1:], strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        # A spawned loader process unpickles the dataset: pickle the location of a mapped file, not its
        # content.
        tokens = self.tokens
        if not isinstance(tokens, np.memmap):
            return Windows, (tokens, self.seq_len)
        return _mapped_windows, (tokens.filename, tokens.dtype, tokens.offset, tokens.shape, self.seq_len)


def _mapped_windows(
    file: Path, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], seq_len: int
) -> Windows:
    return Windows(np.memmap(file, dtype, "r", offset, shape), seq_len)


def identified(source: Source, kind: str, options: Mapping[str, Any]) -> Source:
    """The source that the data kind `kind` built from `options`; its record has the numbers of samples and
    the fingerprint."""
    record, samples = source.record, sample_count(source.train)
    content = record.sha256 or [kind, record.version, dict(sorted(options.items()))]
    described = [content, source.task, source.shape, source.classes, samples]
    fingerprint = hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()
    counts = {"train_samples": samples, "valid_samples": sample_count(source.valid)}
    return replace(source, record=record.model_copy(update={**counts, "fingerprint": fingerprint}))


def sample_count(dataset: Dataset[Sample] | None) -> int:
    """Number of samples; 0 for no dataset."""
    return 0 if dataset is None else len(dataset)  # type: ignore[arg-type]
