"""Parquet cache of tables made from the files of a run, keyed by the content of the files.

The cache is the folder `.analysis-cache` beside the runs of a sweep. It may be deleted at any time. Without
write permission, tables are parsed anew at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from disttrain.records.json_files import write_bytes
from disttrain.records.regular_file import IrregularFile, open_regular

FOLDER = ".analysis-cache"
SMALLEST_BYTES = 2**20
"""Files of fewer bytes are parsed as fast as a cached table is read; their tables are not cached."""
_VERSION = b"1"  # of the parsers: increase it when they make other tables of the same files
_UNREADABLE = b"unreadable"


def cached(
    run: Path, files: Sequence[Path], parse: Callable[[list[str]], pa.Table]
) -> tuple[pa.Table, list[str], Path | None]:
    """The table of some files of a run, from the cache or by `parse`; a new table is written to the cache.

    Args:
        run: the run directory.
        files: files below `run`.
        parse: makes the table and appends a message for each record that cannot be read.

    Returns:
        Table, messages, and the path of the cached table (None if the files are too small to be cached).

    Raises:
        OSError: one of the files cannot be read.
    """
    unreadable: list[str] = []
    if sum(file.stat().st_size for file in files) < SMALLEST_BYTES:
        return parse(unreadable), unreadable, None
    path = run.parent / FOLDER / f"{_key(run, files)}.parquet"
    with contextlib.suppress(OSError, pa.ArrowException, ValueError):
        with open_regular(path) as file:
            table = parquet.ParquetFile(file).read(use_threads=False)
        names: list[str] = json.loads(table.schema.metadata[_UNREADABLE])
        return table, [f"{run}/{name}" for name in names], path
    table = parse(unreadable)
    names = [message.removeprefix(f"{run}/") for message in unreadable]
    table = table.replace_schema_metadata({_UNREADABLE: json.dumps(names).encode()})
    content = io.BytesIO()
    parquet.write_table(table, content, compression="lz4", use_dictionary=False, write_statistics=False)
    with contextlib.suppress(OSError):
        write_bytes(path, content.getvalue(), durable=False)
    return table, unreadable, path


def remove_unused(sweep: Path, used: Collection[Path]) -> None:
    """Delete the cached tables of a sweep whose files have changed or are gone."""
    with contextlib.suppress(OSError):
        for path in (sweep / FOLDER).glob("*.parquet"):
            if path not in used:
                path.unlink()


def _key(run: Path, files: Sequence[Path]) -> str:
    """SHA-256 over names and contents."""
    total = hashlib.sha256(_VERSION)
    for file in files:
        digest = "irregular"
        with contextlib.suppress(IrregularFile), open_regular(file) as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        total.update(f"{file.relative_to(run)} {digest}\n".encode())
    return total.hexdigest()[:32]
