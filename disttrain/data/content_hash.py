"""SHA-256 of the content of files: one rank reads them, and the others wait for its result. A digest of a few
places of them, which each node can afford, shows whether the nodes have the same files."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from disttrain.errors import ConfigError, in_one_line
from disttrain.runtime import heartbeat
from disttrain.runtime.process_group import World

_HASHED_AT_ONCE = 1 << 30
"""Bytes up to which the hash is that of the concatenated files."""
_BLOCK_BYTES = 64 << 20
"""Size of the blocks of larger data, which threads hash in parallel."""
_PIECE_BYTES = 1 << 20
_PLACES = 64
"""Places of the files that `places_sha256` reads."""
_PLACE_BYTES = 4096
_WAIT_S = 1.0
"""Seconds between two collectives while one rank hashes, so that none of them reaches its time limit."""


def content_sha256(files: Sequence[Path]) -> str:
    """SHA-256 of the files' bytes in order; above 1 GiB, of the sizes of the files and the SHA-256 of each
    block of 64 MiB. Raises `OSError`."""
    sizes = [file.stat().st_size for file in files]
    if sum(sizes) <= _HASHED_AT_ONCE:
        digest = hashlib.sha256()
        for file in files:
            _read(file, 0, None, digest.update)
        return digest.hexdigest()
    blocks = [
        (file, at) for file, size in zip(files, sizes, strict=True) for at in range(0, size, _BLOCK_BYTES)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "hash") as threads:
        found = threads.map(_block_sha256, *zip(*blocks, strict=True))
        return hashlib.sha256(json.dumps([sizes, list(found)]).encode()).hexdigest()


def places_sha256(files: Sequence[Path]) -> str:
    """SHA-256 of the sizes of the files and of 4 KiB at each of `_PLACES` places, evenly spaced over their
    bytes. Raises `OSError`."""
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.sha256(json.dumps(sizes).encode())
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    for place in range(_PLACES if total else 0):
        at = place * total // _PLACES
        number = bisect.bisect_right(ends, at)
        _read(files[number], at - (ends[number] - sizes[number]), _PLACE_BYTES, digest.update)
    return digest.hexdigest()


def shared_content_sha256(files: Sequence[Path], world: World) -> str:
    """`content_sha256`, computed by rank 0 for all ranks. All ranks together.

    Raises `ConfigError` on all ranks if a file cannot be read.
    """
    thread = ThreadPoolExecutor(1, "hash")
    hashed: Future[str] | None = thread.submit(content_sha256, files) if world.rank == 0 else None
    try:
        while True:
            result, problem = world.all_gather_object(_so_far(hashed))[0]
            heartbeat.progress()
            if problem is not None:
                raise ConfigError(f"data: {problem}")
            if result is not None:
                return str(result)
    finally:
        thread.shutdown()


def _so_far(hashed: Future[str] | None) -> tuple[str | None, str | None]:
    """(hash, problem) of rank 0: both None while it is being computed."""
    if hashed is None:
        return None, None
    wait([hashed], _WAIT_S)
    if not hashed.done():
        return None, None
    if problem := hashed.exception():
        return None, in_one_line(problem)
    return hashed.result(), None


def _block_sha256(file: Path, at: int) -> str:
    digest = hashlib.sha256()
    _read(file, at, _BLOCK_BYTES, digest.update)
    return digest.hexdigest()


def _read(file: Path, at: int, size: int | None, take: Callable[[bytes], None]) -> None:
    """Pass the bytes from `at` on to `take` in pieces; `size` limits them."""
    with open(file, "rb") as stream:
        stream.seek(at)
        left = size
        while piece := stream.read(_PIECE_BYTES if left is None else min(_PIECE_BYTES, left)):
            take(piece)
            left = None if left is None else left - len(piece)
