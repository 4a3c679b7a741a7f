"""Manifest of a packed folder of tokens."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record

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
