"""Read JSON Lines as columns of numbers, faster than the standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from disttrain.errors import in_one_line
from disttrain.records.json_files import MAX_LINES_BYTES, IrregularFile, open_regular

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Real = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_NUMBERS = (Int32, float)
Columns = dict[str, NDArray[Any]]
"""Arrays of one length, by name."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_columns(path: Path, fields: Mapping[str, Any], problems: list[str]) -> Columns:
    """The records of a JSON Lines file by field; fields beyond `fields` are left out.

    A truncated last line, left by a killed writer, is left out. Messages on records that cannot be read, each
    with file and line, are appended to `problems`, and so is a path that is not a regular file.

    Args:
        path: the file.
        fields: type of each field: `Int32`, `float`, or another one that msgspec decodes.
        problems: receives the messages.

    Returns:
        Arrays of shape (records,): floats with NaN where a record lacks a number, objects for other types.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open_regular(path, MAX_LINES_BYTES) as file:
            content = file.read()
    except IrregularFile as error:
        problems.append(str(error))
        content = b""
    decoder = _decoder(tuple(fields.items()))
    try:
        records = decoder.decode_lines(content)
    except UNREADABLE:
        records = _readable_lines(path, content, decoder, problems)
    rows = zip(*map(msgspec.structs.astuple, records), strict=True) if records else ([] for _ in fields)
    return {name: _array(values, kind) for (name, kind), values in zip(fields.items(), rows, strict=True)}


def _readable_lines(
    path: Path, content: bytes, decoder: msgspec.json.Decoder[msgspec.Struct], problems: list[str]
) -> list[msgspec.Struct]:
    records = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            records += decoder.decode_lines(line)
        except UNREADABLE as error:
            if number < len(lines):
                problems.append(f"{path}:{number} is not such a record: {in_one_line(error)}")
    return records


@cache
def _decoder(fields: tuple[tuple[str, Any], ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    optional = [(name, kind | None, np.nan if kind in _NUMBERS else None) for name, kind in fields]
    return msgspec.json.Decoder(msgspec.defstruct("Line", optional, gc=False))


def _array(values: Sequence[Any], kind: Any) -> NDArray[Any]:
    if kind in _NUMBERS:
        return np.array(values, dtype=np.float64)
    return np.fromiter(values, object, len(values))
