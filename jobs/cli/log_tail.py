"""Lines of log files that grow: of one file, or of all logs of an attempt in the order of their times."""

from __future__ import annotations

import heapq
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Lines of a file that grows."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._file = open_regular(path)  # closed by `rest`
        self._partial = b""
        self.name = name or path.stem

    def lines(self) -> Iterator[LogLine]:
        """Complete lines since the last call. An incomplete one waits for its end, up to 1 MiB of it."""
        while chunk := self._file.readline(_CHUNK_BYTES):
            self._partial += chunk
            if self._partial.endswith(b"\n") or len(self._partial) >= _CHUNK_BYTES:
                line, self._partial = self._partial, b""
                yield LogLine(self.name, line)

    def rest(self) -> Iterator[LogLine]:
        """All other lines, also the last one without its end. Closes the file."""
        yield from self.lines()
        if self._partial:
            yield LogLine(self.name, self._partial)
        self._file.close()


class MergedTail:
    """Lines of all ranks and nodes of an attempt, ordered by time.

    A line without a time has that of the line before it in its file. Lines of one file keep their order.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tails: dict[str, LogTail] = {}
        self._newest: dict[str, bytes] = {}
        """Newest time in each file."""

    @classmethod
    def of(cls, attempt: Attempt) -> MergedTail | None:
        """None for an attempt without logs."""
        return cls(attempt) if log_names(attempt) else None

    def lines(self) -> Iterator[LogLine]:
        """Complete lines of all logs since the last call, also of logs that did not exist then."""
        return self._merged([tail.lines() for tail in self._opened()])

    def rest(self) -> Iterator[LogLine]:
        """All other lines. Closes the files."""
        return self._merged([tail.rest() for tail in self._opened()])

    def _opened(self) -> list[LogTail]:
        names = log_names(self._attempt)
        _allow_open_files(len(names))
        for name in names:
            if name not in self._tails:
                self._tails[name] = LogTail(self._attempt.path / f"{name}.log")
        return list(self._tails.values())

    def _merged(self, files: Sequence[Iterator[LogLine]]) -> Iterator[LogLine]:
        for _, line in heapq.merge(*map(self._timed, files), key=lambda timed: timed[0]):
            yield line

    def _timed(self, lines: Iterator[LogLine]) -> Iterator[tuple[bytes, LogLine]]:
        for line in lines:
            if line.source == "node-00" and _OF_RANK_0.match(line.text):
                continue
            newest = self._newest.get(line.source, b"")
            found = _TIME.match(line.text)
            newest = self._newest[line.source] = max(newest, found[1]) if found else newest
            yield newest, line


def log_names(attempt: Attempt) -> list[str]:
    """Names of the logs of an attempt without their suffix, nodes before ranks."""
    return sorted(path.stem for path in attempt.path.glob("*.log"))


def title_of(source: str) -> str:
    """`rank 3` for the log `rank-00003`."""
    found = _LOG.fullmatch(source)
    return f"{found[1]} {int(found[2])}" if found else source


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files, often 1024, for the logs of more ranks than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 64
    if resource.RLIM_INFINITY != soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
