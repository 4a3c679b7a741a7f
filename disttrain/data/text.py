"""Text for language modelling, as bytes or as tokens. The default corpus is the source of Python itself.

Files are read in the order of their relative paths; duplicates and empty files are left out. The validation
split consists of whole files in the order of the SHA-256 of their content, up to `valid_share` of all bytes;
a file that no longer fits is skipped. If no file fits, the split is the end of the last file. The split
therefore depends only on the content, and no file is in both splits.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from disttrain.data.source import Source, sample_count, windows_or_refuse
from disttrain.data.tokenizer import Tokenizer, load_tokenizer
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord

_STDLIB_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Installed packages, and tests, which some distributions do not install."""


def build(
    *,
    path: str | None = None,
    pattern: str | None = None,
    seq_len: int = 128,
    valid_share: float = 0.05,
    tokenizer: str = "bytes",
) -> Source:
    """Text from `path`, a folder or a file; without it, the source of Python's standard library.

    Parameters
    ----------
    path : folder (read recursively, hidden files and folders left out) or single file.
    pattern : file names to read, such as `*.txt`; by default `*.py` of the standard library, else all.
    seq_len : predicted tokens of a sample.
    valid_share : share of the bytes held out for validation, from 0 to 0.5.
    tokenizer : `bytes` (256 tokens), or the local folder of a Hugging Face tokenizer.

    Raises
    ------
    ConfigError : no text was found, or less than one sample.
    """
    if seq_len < 1:
        raise ConfigError(f"data.seq_len={seq_len}: must be at least 1")
    if not 0 <= valid_share <= 0.5:
        raise ConfigError(f"data.valid_share={valid_share}: must be between 0 and 0.5")
    files = _read_stdlib(pattern or "*.py") if path is None else _read(Path(path), pattern or "*")
    split = _split(files, valid_share)
    loaded = load_tokenizer(tokenizer, "data.tokenizer")
    train, valid = _encode(loaded, split.train), _encode(loaded, split.valid)
    encoded, encoded_bytes = (valid, split.valid) if split.valid else (train, split.train)
    train_windows = windows_or_refuse(train, seq_len, "the training split")
    valid_windows = windows_or_refuse(valid, seq_len, "the validation split") if split.valid else None
    return Source(
        train=train_windows,
        valid=valid_windows,
        task="language",
        shape=(seq_len,),
        classes=loaded.vocab,
        tokens_per_sample=seq_len,
        bytes_per_token=sum(map(len, encoded_bytes)) / len(encoded),
        record=DatasetRecord(
            name="python-stdlib" if path is None else "text",
            version=platform.python_version() if path is None else None,
            sha256=_sha256(files),
            train_samples=len(train_windows),
            valid_samples=sample_count(valid_windows),
            bytes=sum(map(len, files)),
            unigram_entropy_bits=unigram_entropy_bits(split.train),
        ),
    )


def unigram_entropy_bits(contents: list[bytes]) -> float:
    """Shannon entropy of the distribution of single bytes in `contents`, in bits per byte."""
    counts = np.zeros(256, np.int64)
    for content in contents:  # by file, because `bincount` casts its input to eight bytes per value
        counts += np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


@dataclass(frozen=True)
class _Split:
    train: list[bytes]
    valid: list[bytes]


def _read_stdlib(pattern: str) -> list[bytes]:
    root = Path(sysconfig.get_path("stdlib"))
    # Python's build writes this module with paths of its machine.
    names = [name for name in _walk(root, pattern, _STDLIB_LEFT_OUT) if "_sysconfigdata" not in name]
    return _contents(root, names, f"the standard library's source (pattern {pattern!r})")


def _read(path: Path, pattern: str) -> list[bytes]:
    if path.is_dir():
        return _contents(
            path, _walk(path, pattern, set()), f"data.path={str(path)!r} with pattern {pattern!r}"
        )
    if not path.exists():
        raise ConfigError(f"data.path={str(path)!r} does not exist; give a folder or a file of text")
    return _contents(path.parent, [path.name], f"data.path={str(path)!r}")


def _walk(root: Path, pattern: str, left_out: set[str]) -> list[str]:
    """Sorted relative paths with `/` as separator, so that the order is the same on every machine."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [
            f for f in folders if f not in left_out and f != "__pycache__" and not f.startswith(".")
        ]
        relative = Path(folder).relative_to(root)
        found += [(relative / n).as_posix() for n in names if fnmatch(n, pattern) and not n.startswith(".")]
    return sorted(found)


def _contents(root: Path, names: list[str], what: str) -> list[bytes]:
    contents: dict[bytes, None] = {}
    for name in names:
        try:
            contents[(root / name).read_bytes()] = None
        except OSError as error:
            raise ConfigError(f"data: cannot read {str(root / name)!r}: {error.strerror}") from None
    contents.pop(b"", None)
    if not contents:
        raise ConfigError(f"data: nothing to read in {what}; give a folder or a file of text as data.path")
    return list(contents)


def _split(files: list[bytes], valid_share: float) -> _Split:
    room = round(valid_share * sum(map(len, files)))
    chosen: set[bytes] = set()
    for content in sorted(files, key=lambda content: hashlib.sha256(content).digest()):
        if len(content) <= room:
            chosen.add(content)
            room -= len(content)
    if chosen or not room:
        return _Split([c for c in files if c not in chosen], [c for c in files if c in chosen])
    *others, last = files
    room = min(room, len(last) // 2)
    return _Split([*others, last[:-room]], [last[-room:]])


def _sha256(files: list[bytes]) -> str:
    digest = hashlib.sha256()
    for content in files:
        digest.update(content)
    return digest.hexdigest()


def _encode(tokenizer: Tokenizer, contents: list[bytes]) -> np.ndarray:
    """The tokens of all files, each encoded separately."""
    if tokenizer.dtype is np.uint8:
        return np.frombuffer(b"".join(contents), np.uint8)
    return np.concatenate([np.empty(0, tokenizer.dtype), *tokenizer.encode(contents)])
