"""Lines of log files that grow, merged in the order of their times."""

from __future__ import annotations

import heapq
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from disttrain.records.regular_file import open_regular
from disttrain.records.run_directory import Attempt

_CHUNK_BYTES = 1 << 20
_TIME = re.compile(rb"(?:time=)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z|\+00:00)")
"""Time in UTC at the start of a line, as agents and ranks write it."""
_OF_RANK_0 = re.compile(rb"time=\S+ level=\w+ rank=0 ")
"""A line that rank 0 writes to its own log, and to the log of its node."""
_LOG = re.compile(r"(rank|node)-(\d+)")


@dataclass(frozen=True)
class LogLine:
    """A line, and the file it is from, without the suffix."""

    source: str
    text: bytes
    """Ends with a newline, except a part of a very long line, and the last line of a file without one."""


class LogTail:
    """Lines of files that grow, and of files that appear later.

    A line without a time has that of the line before it in its file. Lines of one file keep their order.
    """

    def __init__(self, files: Callable[[], dict[str, Path]]) -> None:
        """`files` returns the present files by name."""
        self._files = files
        self._open: dict[str, BinaryIO] = {}
        self._partial: dict[str, bytes] = {}
        self._newest: dict[str, bytes] = {}
        """Newest time in each file."""

    def lines(self, *, ended: bool) -> Iterator[LogLine]:
        """Complete lines since the last call. A line without its end waits for it, up to 1 MiB of it.

        With `ended` all other lines, also the last ones without their ends.
        """
        files = self._files()
        _allow_open_files(len(files))
        for name, path in files.items():
            if name not in self._open:
                self._open[name] = open_regular(path)
        timed = (self._timed(name, file, ended) for name, file in self._open.items())
        for _, line in heapq.merge(*timed, key=lambda timed: timed[0]):
            if not (len(files) > 1 and line.source == "node-00" and _OF_RANK_0.match(line.text)):
                yield line

    def _timed(self, name: str, file: BinaryIO, ended: bool) -> Iterator[tuple[bytes, LogLine]]:
        text, newest = self._partial.pop(name, b""), self._newest.get(name, b"")
        while chunk := file.readline(_CHUNK_BYTES):
            text += chunk
            if text.endswith(b"\n") or len(text) >= _CHUNK_BYTES:
                time = _TIME.match(text)
                newest = self._newest[name] = max(newest, time[1]) if time else newest
                yield newest, LogLine(name, text)
                text = b""
        if text and ended:
            yield newest, LogLine(name, text)
        elif text:
            self._partial[name] = text


def logs_of(attempt: Attempt) -> dict[str, Path]:
    """The logs of an attempt by name without their suffix, nodes before ranks."""
    return {path.stem: path for path in sorted(attempt.path.glob("*.log"))}


def title_of(source: str) -> str:
    """`rank 3` for the log `rank-00003`."""
    log = _LOG.fullmatch(source)
    return f"{log[1]} {int(log[2])}" if log else source


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files, often 1024, for the logs of more ranks than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 64
    if resource.RLIM_INFINITY != soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
