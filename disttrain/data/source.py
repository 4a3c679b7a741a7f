"""What every data kind hands to the trainer and to the models: datasets, and what is in them.

A dataset is map-style: `ds[i]` is `(input, target)` without a batch dimension. `__getitems__`, which
PyTorch's loader prefers where it is defined, returns a list of such pairs, copied in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """A data source: what to train on, what to validate on, and what a model needs to know of it."""

    train: Dataset[Sample]
    valid: Dataset[Sample] | None
    task: Task
    shape: tuple[int, ...]
    """Shape of one input, without the batch dimension: `(seq_len,)` for language."""
    classes: int
    """Vocabulary for language, number of classes, or number of outputs for regression."""
    record: DatasetRecord
    tokens_per_sample: int | None = None
    """Predicted tokens in one sample; null where samples are no token sequences."""
    bytes_per_token: float | None = None
    """Bytes of text that one token stands for, to state a loss in bits per byte; null where unknown."""

    @property
    def images(self) -> bool:
        """Whether a sample is an image: (channels, height, width), to classify."""
        return self.task == "classification" and len(self.shape) == 3


class Arrays(Dataset[Sample]):
    """Samples held in memory as two tensors whose first dimension counts them."""

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
    """A token stream cut into samples: sample i reads tokens [i*L, (i+1)*L) and predicts each's successor.

    Inputs do not overlap, so every token but the first is predicted exactly once; what is left at the end,
    less than one window, is not used. Tokens stay in their own small type until they are asked for.
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
        # A loader process that is not forked gets a pickle: send where a mapped file is, not its content.
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
    """`Windows`, or a `ConfigError` when `what` (say, "the validation split") does not fill a single one."""
    windows = Windows(tokens, seq_len)
    if not len(windows):
        raise ConfigError(
            f"data.seq_len={seq_len} needs {seq_len + 1} tokens, but {what} has {len(tokens)}; "
            "use a smaller data.seq_len or more data"
        )
    return windows


def sample_count(dataset: Dataset[Sample] | None) -> int:
    """Number of samples; 0 for no dataset."""
    return 0 if dataset is None else len(dataset)  # type: ignore[arg-type]
