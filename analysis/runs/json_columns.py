"""Read a JSON Lines file into typed columns."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.json

from disttrain.errors import message_of


def read_columns(path: Path, schema: pa.Schema, unreadable: list[str]) -> pa.Table:
    """The records of a JSON Lines file; other fields than those of `schema` are left out.

    A field that a record lacks is null. A truncated last line, left by a killed writer, is left out. File,
    line and problem of each record that cannot be read are appended to `unreadable`.

    Raises:
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content) and _is_record(content[end:]):
        end = len(content)
    if not content[:end].strip():
        return schema.empty_table()
    try:
        return _parse(content[:end], schema)
    except pa.ArrowInvalid:
        found = _readable(path, 1, content[:end].split(b"\n"), schema, unreadable)
        return pa.concat_tables([schema.empty_table(), *found])


def _parse(content: bytes, schema: pa.Schema) -> pa.Table:
    # A block holds whole lines, so it must be at least as long as the longest; one block is one chunk.
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(content), 1 << 16))
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(io.BytesIO(content), read_options=reading, parse_options=parsing)


def _readable(
    path: Path, first: int, lines: Sequence[bytes], schema: pa.Schema, unreadable: list[str]
) -> list[pa.Table]:
    """The records of `lines`, which begin at line `first`, by bisection around those that cannot be read."""
    content = b"\n".join(lines)
    if not content.strip():
        return []
    try:
        return [_parse(content, schema)]
    except pa.ArrowInvalid as error:
        if len(lines) > 1:
            half = len(lines) // 2
            return [
                *_readable(path, first, lines[:half], schema, unreadable),
                *_readable(path, first + half, lines[half:], schema, unreadable),
            ]
        is_record = _is_record(content)
        problem = f"does not fit its schema: {message_of(error)}" if is_record else "is not a JSON record"
        unreadable.append(f"{path}:{first} {problem}")
        return []


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
