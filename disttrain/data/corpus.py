"""Files of a corpus, and the tokenizers of its text: bytes, or a local Hugging Face tokenizer.

Imports without torch.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from disttrain.errors import ConfigError

BYTES = "bytes"
"""Name of the tokenizer whose tokens are bytes."""


@dataclass(frozen=True)
class Tokenizer:
    """Encodes documents, given as UTF-8 or other bytes, without special tokens."""

    vocab: int
    dtype: type[np.unsignedinteger]
    """The smallest of uint8, uint16 and uint32 that holds every token."""
    separator: int
    """Token that ends a document: the end-of-text token, or byte 0."""
    encode: Callable[[Sequence[bytes]], list[np.ndarray]]
    """Documents to token arrays of `dtype`."""


def load_tokenizer(name: str, field: str) -> Tokenizer:
    """The tokenizer `name`: `bytes`, or a folder written by `save_pretrained`.

    Raises `ConfigError`, for the option `field`, if the folder holds no tokenizer or transformers is missing.
    """
    if name == BYTES:
        return Tokenizer(256, np.uint8, 0, lambda texts: [np.frombuffer(text, np.uint8) for text in texts])
    given = f"{field}={name!r}"
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(
            f"{given} needs the package transformers; install disttrain[huggingface] or use {field}=bytes"
        ) from None
    if not Path(name).is_dir():
        raise ConfigError(f"{given} is no folder; allowed: bytes, or a local tokenizer folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{given} cannot be loaded: {error}") from None
    vocab = len(tokenizer)
    dtype = np.uint16 if vocab <= 1 << 16 else np.uint32

    def encode(texts: Sequence[bytes]) -> list[np.ndarray]:
        plain = [text.decode("utf-8", errors="replace") for text in texts]
        return [
            np.asarray(ids, dtype)
            for ids in tokenizer(plain, add_special_tokens=False, verbose=False)["input_ids"]
        ]

    end = tokenizer.eos_token_id
    return Tokenizer(vocab, dtype, 0 if end is None else int(end), encode)


def files_below(root: Path, pattern: str = "*", left_out: Collection[str] = ("__pycache__",)) -> list[str]:
    """Sorted relative paths of the files in a folder, without hidden files and folders and those of the names
    `left_out`. A file has the relative path `""`."""
    if root.is_file():
        return [""]
    start, names = len(os.path.join(root, "")), []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        names += [
            os.path.join(folder, name)[start:]
            for name in fnmatch.filter(files, pattern)
            if not name.startswith(".")
        ]
    return sorted(names)
