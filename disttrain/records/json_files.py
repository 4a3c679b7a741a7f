"""Read and write files so that a reader never sees half of one: write to a temporary name, then rename.

Imports nothing beyond the standard library: `status` reads a thousand of these in a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STRICT = json.JSONEncoder(allow_nan=False)  # kept: making one costs as much as a line of step records


class CorruptFile(ValueError):
    """A record that cannot be read; the message is one line naming the file."""


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a whole file atomically: readers see the old content or the new, never a part.

    `durable` also waits for the disk; live state that is rewritten every second does without.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode(), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write strict JSON atomically; a float that is not finite becomes null."""
    write_text(path, to_json(value, indent=1) + "\n", durable=durable)


def create_exclusive(path: Path, value: Any) -> bool:
    """Create `path` with complete JSON content if nobody has; False if it is there already.

    Hard-linking a finished temporary file is atomic, also on NFS: exactly one caller wins, and no
    reader ever sees the winner's file without its content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    write_json(temporary, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS the answer to a link that was made may get lost, and asking again then says this.
        with open(temporary) as file:  # which asks the server, where `stat` may remember
            return os.fstat(file.fileno()).st_nlink > 1
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _temporary(path: Path) -> Path:
    """Nobody else's: on two nodes there may be processes of one number, above all in containers."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text: NaN and infinities, which JSON has no word for, become null."""
    encoder = json.JSONEncoder(indent=indent, allow_nan=False) if indent else _STRICT
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object. Raises `FileNotFoundError`, or `CorruptFile` when it is not one."""
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path} holds {type(value).__name__}, not an object")
    return value


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """The JSON object at `path`, or None when it is missing or corrupt."""
    try:
        return read_json(path)
    except (OSError, CorruptFile):
        return None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file; a truncated last line (a killed writer) is left out.

    Raises `CorruptFile` for a bad line anywhere else.
    """
    with open(path, "rb") as file:
        pending: bytes | None = None
        number = 0
        for line in file:
            if pending is not None:
                yield _record(path, number, pending)
            pending = line
            number += 1
            if not line.endswith(b"\n"):
                break  # the end as it was just now: its writer may go on meanwhile, in the midst of a line
        if pending is not None:
            try:
                record = _record(path, number, pending)
            except CorruptFile:
                return
            yield record


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CorruptFile(f"{path}:{number} is not a JSON record") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path}:{number} is not a JSON object")
    return value
