"""Tokenized files, mapped into memory, so that training reads only the samples it uses.

A `.npy` file holds a one-dimensional integer array; any other file holds raw numbers of `dtype`. The token
files of a folder (`*.npy`, `*.bin`) are read in the order of their names; no sample spans two files. The
validation split is `valid_path`, or else the last `valid_share` of the samples. The record's `sha256` is the
hash of the files' bytes in order; above 1 GiB, of 1,024 blocks of 1 MiB.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from pathlib import Path
from typing import Literal

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from disttrain.data.source import Sample, Source, Windows, sample_count, windows_or_refuse
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord

_HASHED_BYTES = 1 << 30
"""Bytes that every rank hashes at start, in about a second."""
_BLOCK_BYTES = 1 << 20
"""Size of the hashed blocks of larger data."""


def build(
    *,
    path: str,
    vocab: int,
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16",
    seq_len: int = 1024,
    valid_path: str | None = None,
    valid_share: float = 0.01,
    bytes_per_token: float | None = None,
) -> Source:
    """Language modelling on the token file or folder `path`.

    Parameters
    ----------
    vocab : size of the vocabulary; every token is smaller.
    dtype : dtype of raw files; a `.npy` file contains its own.
    seq_len : predicted tokens of a sample.
    valid_path : token file or folder to validate on.
    valid_share : share of the samples held out without `valid_path`, from 0 to 0.5.
    bytes_per_token : mean bytes of text per token, for a validation loss in bits per byte.

    Raises
    ------
    ConfigError : a file is missing, fills no sample, or holds a token outside of the vocabulary.
    """
    if seq_len < 1:
        raise ConfigError(f"data.seq_len={seq_len}: must be at least 1")
    if not 0 <= valid_share <= 0.5:
        raise ConfigError(f"data.valid_share={valid_share}: must be between 0 and 0.5")
    files = _token_files("data.path", path)
    samples = _samples(files, dtype, seq_len, vocab)
    train: Dataset[Sample] = samples
    valid: Dataset[Sample] | None = None
    if valid_path is not None:
        valid_files = _token_files("data.valid_path", valid_path)
        valid = _samples(valid_files, dtype, seq_len, vocab)
        files += valid_files
    elif held_out := round(valid_share * len(samples)):
        kept = len(samples) - held_out
        train, valid = Subset(samples, range(kept)), Subset(samples, range(kept, len(samples)))
    size_bytes = sum(file.stat().st_size for file in files)
    is_hashed_whole = size_bytes <= _HASHED_BYTES
    return Source(
        train=train,
        valid=valid,
        task="language",
        shape=(seq_len,),
        classes=vocab,
        tokens_per_sample=seq_len,
        bytes_per_token=bytes_per_token,
        record=DatasetRecord(
            name="tokens",
            version=None,
            sha256=_sha256(files) if is_hashed_whole else _sha256_of_blocks(files),
            hashed_bytes=None if is_hashed_whole else _HASHED_BYTES,
            train_samples=sample_count(train),
            valid_samples=sample_count(valid),
            bytes=size_bytes,
        ),
    )


def _token_files(field: str, path: str) -> list[Path]:
    root = Path(path)
    if root.is_dir():
        files = sorted(p for p in root.iterdir() if p.suffix in (".npy", ".bin"))
        if not files:
            raise ConfigError(f"{field}={path!r} holds no *.npy or *.bin files")
        return files
    if not root.is_file():
        raise ConfigError(f"{field}={path!r} does not exist; give a token file or a folder of them")
    return [root]


def _samples(files: list[Path], dtype: str, seq_len: int, vocab: int) -> ConcatDataset[Sample]:
    windows: list[Windows] = []
    for file in files:
        tokens = _map(file, dtype)
        windows.append(windows_or_refuse(tokens, seq_len, f"token file {file.name}"))
        largest = int(tokens[: 1 << 20].max())  # the first tokens reveal a wrong dtype or vocabulary
        if largest >= vocab:
            raise ConfigError(
                f"data.vocab={vocab}, but {file.name} holds token {largest}; check data.vocab and data.dtype"
            )
    return ConcatDataset(windows)


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


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _sha256_of_blocks(files: list[Path]) -> str:
    """SHA-256 over the sizes of the files and evenly spaced blocks of their concatenation, the first and the
    last block included. It differs for another corpus or tokenizer, but not for each changed token."""
    sizes = [file.stat().st_size for file in files]
    begins = list(itertools.accumulate(sizes, initial=0))
    digest = hashlib.sha256(json.dumps(sizes).encode())
    count, last = _HASHED_BYTES // _BLOCK_BYTES, begins[-1] - _BLOCK_BYTES
    for block in range(count):
        at = block * last // (count - 1)
        end = at + _BLOCK_BYTES
        while at < end:  # a block may extend over several files
            index = bisect.bisect_right(begins, at) - 1
            with open(files[index], "rb") as stream:
                stream.seek(at - begins[index])
                digest.update(stream.read(end - at))
            at = min(end, begins[index + 1])
    return digest.hexdigest()
