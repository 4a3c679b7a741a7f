"""Text for language modelling, as bytes or as tokens. The default corpus is the source of Python itself.

Files are read in the order of their relative paths; duplicates and empty files are left out. The validation
split consists of whole files in the order of the SHA-256 of their content, up to `valid_share` of all bytes;
a file that no longer fits is skipped. If no file fits, the split is the end of the last file. The split
therefore depends only on the content, and no file is in both splits.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from disttrain.config.options import Share
from disttrain.data.corpus import files_below, load_tokenizer
from disttrain.data.source import Source, Windows
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord

SAMPLES = "tokens"
_STDLIB_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Installed packages, and tests, which some distributions do not install."""


def build(
    *,
    path: str | None = None,
    pattern: str | None = None,
    seq_len: PositiveInt = 128,
    valid_share: Share = 0.05,
    tokenizer: str = "bytes",
) -> Source:
    """Text from `path`; without it, the source of Python's standard library.

    Parameters
    ----------
    path : folder, read recursively without hidden files, or file.
    pattern : names of files, such as `*.txt`; null: all, or `*.py` of the standard library.
    seq_len : predicted tokens of a sample.
    valid_share : share of the bytes held out.
    tokenizer : `bytes` (256 tokens), or the folder of a Hugging Face tokenizer.

    Raises
    ------
    ConfigError : no text was found, or less than one sample.
    """
    files = _read(path, pattern)
    train_files, valid_files = _split(files, valid_share)
    loaded = load_tokenizer(tokenizer, "data.tokenizer")

    def windows(contents: list[bytes], what: str) -> Windows:
        return Windows(np.concatenate(loaded.encode(contents)), seq_len, what)

    train = windows(train_files, "the training split")
    valid = windows(valid_files, "the validation split") if valid_files else None
    held_out, held_out_bytes = (train, train_files) if valid is None else (valid, valid_files)
    return Source(
        train=train,
        valid=valid,
        task="language",
        shape=(seq_len,),
        classes=loaded.vocab,
        tokens_per_sample=seq_len,
        bytes_per_token=sum(map(len, held_out_bytes)) / len(held_out.tokens),
        record=DatasetRecord(
            name="python-stdlib" if path is None else "text",
            version=platform.python_version() if path is None else None,
            sha256=hashlib.sha256(b"".join(files)).hexdigest(),
            bytes=sum(map(len, files)),
            unigram_entropy_bits=unigram_entropy_bits(train_files),
        ),
    )


def unigram_entropy_bits(contents: list[bytes]) -> float:
    """Shannon entropy of the distribution of single bytes in `contents`, in bits per byte."""
    counts = np.zeros(256, np.int64)
    for content in contents:  # by file, because `bincount` casts its input to eight bytes per value
        counts += np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def _read(path: str | None, pattern: str | None) -> list[bytes]:
    """The contents of the files, without duplicates and empty files. Raises `ConfigError`."""
    if path is None:
        root, pattern, what = Path(sysconfig.get_path("stdlib")), pattern or "*.py", "the standard library"
        # Python's build writes this module with paths of its machine.
        names = [n for n in files_below(root, pattern, _STDLIB_LEFT_OUT) if "_sysconfigdata" not in n]
    else:
        root, pattern, what = Path(path), pattern or "*", f"data.path={path!r}"
        if not root.exists():
            raise ConfigError(f"{what} does not exist; give a folder or a file of text")
        names = files_below(root, pattern)
    try:
        contents = dict.fromkeys((root / name).read_bytes() for name in names)
    except OSError as error:
        raise ConfigError(f"data: cannot read {error.filename!r}: {error.strerror}") from None
    contents.pop(b"", None)
    if not contents:
        raise ConfigError(
            f"data: nothing to read in {what} (pattern {pattern!r}); give a folder or a file of text as "
            "data.path"
        )
    return list(contents)


def _split(files: list[bytes], valid_share: float) -> tuple[list[bytes], list[bytes]]:
    """Contents of the training and of the validation split."""
    room = round(valid_share * sum(map(len, files)))
    chosen: set[bytes] = set()
    for content in sorted(files, key=lambda content: hashlib.sha256(content).digest()):
        if len(content) <= room:
            chosen.add(content)
            room -= len(content)
    if chosen or not room:
        return [c for c in files if c not in chosen], [c for c in files if c in chosen]
    *others, last = files
    room = min(room, len(last) // 2)
    return [*others, last[:-room]], [last[-room:]]
