"""`logs`: print the log of one rank or node, or of all; `--follow` goes on through all further attempts.

The batch log, the output of the set-up, is printed for a job that has not started its agents yet, or that
ended before.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jobs.cli import options

if TYPE_CHECKING:
    from disttrain.records.run_directory import Attempt
    from jobs.cli.terminal import Colour
    from jobs.status.run_state import RunState

_POLL_INTERVAL_S = 0.2
_COLOURS: tuple[Colour, ...] = ("cyan", "green", "yellow")
_TITLE_CHARS = len("rank 127")
_CHUNK_BYTES = 1 << 20
_TIME = re.compile(rb"(?:time=)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z|\+00:00)")
"""Time in UTC at the start of a line, as agents and ranks write it."""
_OF_RANK_0 = re.compile(rb"time=\S+ level=\w+ rank=0 ")
"""A line that rank 0 writes to its own log, and to the log of its node."""
_LOG = re.compile(r"(rank|node)-(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser)
    options.value(parser, "run", "RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    which = parser.add_mutually_exclusive_group()
    options.value(which, "--rank", "R", "log of this rank (the one that failed first, else 0)", type=int)
    options.value(which, "--node", "N", "log of this node: agent and torchrun", type=int)
    options.flag(which, "--all", "logs of all ranks and nodes, by time")
    options.value(parser, "--attempt", "K", "attempt (the last)", type=int)


def run(args: argparse.Namespace) -> int:
    """Print the log of an attempt; with `--follow` until the attempt has ended, then those of later ones.

    The batch log is printed while a start of the job has no attempt. With `--attempt`, no other attempt is
    printed. The scheduler is queried as well: after the loss of a node, the files of the run do not show its
    end.
    """
    from disttrain.errors import ConfigError
    from jobs.cli import bench, selection
    from jobs.cli.command_output import add_json, print_warning
    from jobs.cli.follow import PolledRuns
    from jobs.status.run_folders import names_in
    from jobs.status.run_state import read_state

    run = selection.find_run(args.runs, args.run)
    polled = PolledRuns(lambda: [read_state(run)])
    number: int | None = args.attempt
    batch = tail = None
    is_printed, notice = False, ""
    while True:
        with contextlib.suppress(FileNotFoundError):  # of a run that was moved away meanwhile
            names_in(run)  # refuses links
        # The state and the attempts are read before the log, so that no line before an end is missed.
        (state,) = polled.read() if args.follow else [read_state(run)]
        if not args.follow and _wants_latest(args):
            (state,) = selection.refresh_or_warn([state])
        if polled.notice != notice and (notice := polled.notice):
            print_warning(notice)
        attempts = {attempt.number: attempt for attempt in run.attempts()}
        if number is None and attempts:
            number = max(attempts)
        later = [other for other in attempts if number is not None and other > number]
        ended = bool(later) or not state.active
        if tail is None and number in attempts:
            tail = _open_log(attempts[number], args, ended=ended)
        batch = batch or _open_batch_log(state, args)
        is_before_agents = batch is not None and _is_before_agents(state)
        if tail is not None and (args.follow or not is_before_agents):
            _print_lines(tail, args, ended=ended or not args.follow)
            is_printed = True
        if batch is not None and is_before_agents:
            _print_lines(batch, args, ended=not (args.follow and state.active))
            is_printed = True
        if args.follow and not ended:
            time.sleep(_POLL_INTERVAL_S)
            continue
        if not args.follow or args.attempt is not None or not later:
            break
        number, tail = min(later), None
        print(f"{state.label}: attempt {number}", file=sys.stderr)
    if not is_printed:
        raise ConfigError(_missing_log_message(args, state))
    if not args.follow and (results := bench.results_text([run])):
        print(f"\n{results}")
    add_json([state])
    return 0


def _wants_latest(args: argparse.Namespace) -> bool:
    """Whether no log is named on the command line."""
    return args.attempt is None and args.rank is None and args.node is None


def _is_before_agents(state: RunState) -> bool:
    """Whether the newest start of the run's job has no attempt, as far as files and scheduler show."""
    return state.before_agents or not state.claimed


def _open_batch_log(state: RunState, args: argparse.Namespace) -> LogTail | None:
    """The batch log, if it is the latest log of the run and none is named."""
    from jobs.status.refresh import batch_log_of

    path = batch_log_of(state) if _wants_latest(args) and _is_before_agents(state) else None
    if path is None or not (state.before_agents or path.stat().st_size):
        return None
    return LogTail(lambda: {"batch": path})


def _open_log(attempt: Attempt, args: argparse.Namespace, *, ended: bool) -> LogTail | None:
    """The requested log of an attempt; None if it does not exist.

    Default: the log of the rank that failed first, else of rank 0. An ended attempt without one has failed
    before rank 0 started: then node 0's log.
    """
    from disttrain.records.json_files import read_json_or_none

    if args.all:
        return LogTail(lambda: logs_of(attempt)) if logs_of(attempt) else None
    if args.node is not None:
        paths = [attempt.node_log(args.node)]
    elif args.rank is not None:
        paths = [attempt.rank_log(args.rank)]
    else:
        rank = (read_json_or_none(attempt.record) or {}).get("first_failed_rank")
        if isinstance(rank, int) and rank > 0 and attempt.rank_log(rank).exists():
            print(f"rank {rank} failed first; --rank 0 prints another log", file=sys.stderr)
            paths = [attempt.rank_log(rank)]
        else:
            paths = [attempt.rank_log(0), *[attempt.node_log(0)] * ended]
    path = next((path for path in paths if path.exists()), None)
    return LogTail(lambda: {path.stem: path}) if path else None


def _missing_log_message(args: argparse.Namespace, state: RunState) -> str:
    attempts = {attempt.number: attempt for attempt in state.run.attempts()}
    if not attempts:
        return f"{state.label} has no log: it has not started (state: {state.state})"
    number = max(attempts) if args.attempt is None else args.attempt
    if number not in attempts:
        return f"--attempt {number}: {state.label} has attempts {', '.join(map(str, attempts))}"
    logs = ", ".join(logs_of(attempts[number])) or "none"
    return f"{state.label} has no such log in attempt {number}; existing logs: {logs}"


def _print_lines(tail: LogTail, args: argparse.Namespace, *, ended: bool) -> None:
    """Print lines, with `--all` after a title such as `rank 3  | `, coloured by the number of the rank."""
    from jobs.cli.command_output import print_json_line
    from jobs.cli.terminal import has_colour, paint

    for line in tail.lines(ended=ended):
        text = line.text.decode(errors="replace").rstrip("\n")
        print_json_line({"log": line.source, "line": text})
        prefix = ""
        if args.all:
            prefix = f"{title_of(line.source):<{_TITLE_CHARS}} |"
            number = line.source.removeprefix("rank-")
            if number.isdigit() and has_colour(sys.stdout):
                prefix = paint(prefix, _COLOURS[int(number) % len(_COLOURS)])
            prefix += " "
        sys.stdout.write(f"{prefix}{text}\n")
    sys.stdout.flush()


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
        from disttrain.records.json_files import open_regular

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
