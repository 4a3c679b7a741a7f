"""Tokenized files, mapped into memory, so that training reads only the samples it uses.

A packed folder (`disttrain.data.pack`) has a manifest with dtype, vocabulary and content hash. Without one, a
`.npy` file holds a one-dimensional integer array, and any other file raw numbers of `dtype`. The token files
of a folder (`*.npy`, `*.bin`) are read in the order of their names; no sample spans two files. The validation
split is `valid_path`, or else the last `valid_share` of the samples.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveInt, ValidationError
from torch.utils.data import ConcatDataset, Dataset, Subset

from disttrain.config.options import Share
from disttrain.data.source import Sample, Source, Windows
from disttrain.errors import ConfigError
from disttrain.records.dataset import MANIFEST, TOKENS, DatasetRecord, PackedTokens
from disttrain.records.json_files import CorruptFile, read_json

SAMPLES = "tokens"
_PLACES = 64
_PLACE_BYTES = 4096


def build(
    *,
    path: str,
    vocab: PositiveInt | None = None,
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16",
    seq_len: PositiveInt = 1024,
    valid_path: str | None = None,
    valid_share: Share = 0.01,
    bytes_per_token: float | None = None,
) -> Source:
    """Language modelling on tokens.

    Parameters
    ----------
    path : token file, or folder made by `python -m disttrain.data pack`.
    vocab : size of the vocabulary; a packed folder contains its own.
    dtype : dtype of a raw file; a `.npy` file and a packed folder contain their own.
    seq_len : predicted tokens of a sample.
    valid_path : token file or folder to validate on.
    valid_share : share of the samples held out without `valid_path`.
    bytes_per_token : mean bytes of text per token, for a loss in bits per byte; a packed folder contains its
        own.

    Raises
    ------
    ConfigError : a file is missing, fills no sample, or holds a token outside of the vocabulary.
    """
    data = _open("data.path", path, dtype, vocab)
    samples = data.samples(seq_len)
    train: Dataset[Sample] = samples
    valid: Dataset[Sample] | None = None
    parts = [data]
    if valid_path is not None:
        parts.append(_open("data.valid_path", valid_path, data.dtype, data.vocab))
        valid = parts[1].samples(seq_len)
    elif held_out := round(valid_share * len(samples)):
        kept = len(samples) - held_out
        train, valid = Subset(samples, range(kept)), Subset(samples, range(kept, len(samples)))
    files = [file for part in parts for file in part.files]
    sha256 = content_sha256(files)
    return Source(
        train=train,
        valid=valid,
        task="language",
        shape=(seq_len,),
        classes=data.vocab,
        tokens_per_sample=seq_len,
        bytes_per_token=bytes_per_token or data.bytes_per_token,
        files_sha256=sha256,
        record=DatasetRecord(
            name="tokens",
            sha256=data.sha256 if data.sha256 and all(part.sha256 for part in parts) else sha256,
            bytes=sum(file.stat().st_size for file in files),
        ),
    )


def content_sha256(files: Sequence[Path]) -> str:
    """SHA-256 of the sizes of the files and of 4 KiB at each of 64 places, evenly spaced over their bytes.

    So every rank can afford it, whatever the size of the data. Changes between these places are not noticed;
    of one file of up to 256 KiB, every byte counts.
    """
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.sha256(json.dumps(sizes).encode())
    ends = list(itertools.accumulate(sizes))
    for place in range(_PLACES):
        at = place * ends[-1] // _PLACES
        number = bisect.bisect_right(ends, at)
        with open(files[number], "rb") as stream:
            stream.seek(at - (ends[number] - sizes[number]))
            digest.update(stream.read(_PLACE_BYTES))
    return digest.hexdigest()


@dataclass(frozen=True)
class _TokenFiles:
    """Token files of one split or of all data."""

    files: list[Path]
    dtype: str
    vocab: int
    bytes_per_token: float | None = None
    sha256: str | None = None
    """Content hash of a packed folder."""

    def samples(self, seq_len: int) -> ConcatDataset[Sample]:
        """All samples. Raises `ConfigError`."""
        windows: list[Windows] = []
        for file in self.files:
            tokens = _map(file, self.dtype)
            windows.append(Windows(tokens, seq_len, f"token file {file.name}"))
            largest = int(tokens[: 1 << 20].max())  # the first tokens reveal a wrong dtype or vocabulary
            if largest >= self.vocab:
                raise ConfigError(
                    f"data.vocab={self.vocab}, but {file.name} holds token {largest}; check data.vocab and "
                    "data.dtype"
                )
        return ConcatDataset(windows)


def _open(field: str, path: str, dtype: str, vocab: int | None) -> _TokenFiles:
    """The token files at `path`; a packed folder contains its own dtype and vocabulary.

    Raises `ConfigError` for missing files, for a vocabulary that is missing or not that of the packed folder,
    and for a manifest that does not fit the tokens.
    """
    root = Path(path)
    files = sorted(p for p in root.iterdir() if p.suffix in (".npy", ".bin")) if root.is_dir() else [root]
    if not files:
        raise ConfigError(f"{field}={path!r} holds no *.npy or *.bin files")
    if not files[0].is_file():
        raise ConfigError(f"{field}={path!r} does not exist; give a token file or a folder of them")
    if not (root / MANIFEST).is_file():
        if vocab is None:
            raise ConfigError(f"data.vocab is needed by data.kind=tokens: {path!r} holds no {MANIFEST}")
        return _TokenFiles(files, dtype, vocab)
    try:
        packed = PackedTokens.model_validate(read_json((root / MANIFEST).resolve()))
        size = (root / TOKENS).stat().st_size
    except (OSError, CorruptFile, ValidationError):
        raise ConfigError(f"{field}={path!r}: {MANIFEST} is not that of a packed folder of tokens") from None
    if size != packed.tokens * np.dtype(packed.dtype).itemsize:
        raise ConfigError(f"{field}={path!r}: {TOKENS} has {size} bytes, not those of {packed.tokens} tokens")
    if vocab not in (None, packed.vocab):
        raise ConfigError(f"data.vocab={vocab}, but the tokens of {path!r} have vocab={packed.vocab}")
    bytes_per_token = packed.text_bytes / packed.tokens
    return _TokenFiles(files, packed.dtype, packed.vocab, bytes_per_token, packed.sha256)


def _map(file: Path, dtype: str) -> np.ndarray:
    try:
        if file.suffix != ".npy":
            return np.memmap(file, dtype, mode="r")
        tokens = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot map token file {str(file)!r}: {error}") from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
        raise ConfigError(
            f"token file {str(file)!r} holds {tokens.dtype} of shape {tokens.shape}; "
            "needed: integers in one dimension"
        )
    return tokens
