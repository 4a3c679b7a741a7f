"""JSON files, written atomically and read safely.

A file is written under a temporary name, then renamed, so that no reader sees a partial one. Another user or
a broken program may have put something else at its path. A device has no end, a FIFO has no writer, and a
link leads to a file of which the reader may be the only user with access: none of them is a record.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from disttrain.errors import CorruptFile as CorruptFile

MAX_RECORD_BYTES = 64 << 20
"""Largest JSON record. The largest, `report.json`, has 1.5 kB for each run of a sweep, so 15 MB for 10,000
runs. `manifest.json` of a checkpoint of 2,000 ranks has less than 2 MB."""


def write_bytes(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o664) -> None:
    """Write a file atomically: readers see the old content or the new.

    `durable` also waits for the disk. Live state that is rewritten every second does not need that. The umask
    narrows `mode`.
    """
    with _temporary(path) as temporary:
        with open(_create(temporary, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)


def _create(path: Path, mode: int) -> int:
    """Create a file, and its folder if that is missing; the descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, mode)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode(), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write strict JSON atomically; a float that is not finite becomes null."""
    write_text(path, json_text(value), durable=durable)


def json_text(value: Any) -> str:
    """The text that `write_json` writes."""
    return to_json(value, indent=1) + "\n"


def create_exclusive(path: Path, value: Any) -> bool:
    """Create `path` with complete JSON content; False if it exists already.

    A hard link to a finished temporary file is atomic, also on NFS: exactly one caller succeeds, and no
    reader sees the file without its content.
    """
    with _temporary(path) as temporary:
        write_json(temporary, value)
        is_linked = True
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS may lose the reply to a successful link; the retransmitted request then fails. `open`
            # revalidates the link count with the server; `stat` may be cached.
            with open(temporary, "rb") as file:
                is_linked = os.fstat(file.fileno()).st_nlink > 1
        temporary.unlink()
    return is_linked


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A unique name beside `path`: processes on two nodes may have the same pid, above all in containers.

    A failure removes the file, and an `OSError` then names `path`: `write` and `fsync` name no file, `open`
    the temporary one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text of a value or a record: NaN and infinities, which JSON cannot hold, become null."""
    encoder = json.JSONEncoder(indent=indent, allow_nan=False, default=_fields) if indent else _STRICT
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _fields(record: Any) -> Any:
    if not hasattr(record, "model_dump"):
        raise TypeError(f"{type(record).__name__} is no value of JSON")
    return record.model_dump(mode="json")


_STRICT = json.JSONEncoder(allow_nan=False, default=_fields)
"""Reused: constructing one costs as much as encoding a step record."""


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return _finite(_fields(value)) if hasattr(value, "model_dump") else value


def read_record_bytes(path: Path | str) -> bytes:
    """The content of a record. Raises like `open_regular`."""
    file = open_descriptor(path, os.O_RDONLY, MAX_RECORD_BYTES)
    try:  # without the buffer of `open`: `status` of 10,000 runs reads 50,000 records
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def read_json(path: Path | str) -> dict[str, Any]:
    """Read one JSON object. Raises `FileNotFoundError`, or `CorruptFile` when it is not one."""
    try:
        value = json.loads(read_record_bytes(path).decode())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path} holds {type(value).__name__}, not an object")
    return value


def read_json_or_none(path: Path | str) -> dict[str, Any] | None:
    """The JSON object at `path`, or None when it is missing or corrupt."""
    try:
        return read_json(path)
    except (OSError, CorruptFile):
        return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON Lines file that is well formed, without a last line that is being written."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


MAX_LINES_BYTES = 4 << 30
"""Largest JSON Lines file that is read as a whole: ten million step records of 400 bytes."""


class IrregularFile(CorruptFile, OSError):
    """A record that is not a regular file, is a link, or is too large."""


def open_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file for reading, without waiting for the writer of a FIFO.

    Raises `IrregularFile`, or another `OSError` as `open` does.
    """
    return open(open_descriptor(path, os.O_RDONLY, max_bytes), "rb")


def open_descriptor(path: Path | str, flags: int, max_bytes: int | None = None) -> int:
    """As `open_regular`, by `os.open` with these flags; a new file is not for all users to write."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o664)
    except OSError as error:
        kinds = {errno.ELOOP: "a symbolic link, not a file", errno.ENXIO: "a socket, not a file"}
        if kind := kinds.get(error.errno or 0):
            raise IrregularFile(f"{path} is {kind}") from None
        raise
    status = os.fstat(file)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        problem = f"has {status.st_size} bytes, and a record has at most {max_bytes}"
    if problem:
        os.close(file)
        raise IrregularFile(f"{path} {problem}")
    return file


def forbid_world_writes() -> None:
    """Take from all users write access to the files that this process and its children create.

    Records, scripts and code copies decide what the jobs of their owner do. Access of a group, as in a shared
    runs folder, stays as the umask has it.
    """
    os.umask(os.umask(0o077) | 0o002)
