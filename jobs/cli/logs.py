"""`logs`: print the log of one rank or node, or of all; `--follow` goes on through all further attempts.

The batch log, the output of the set-up, is printed for a job that has not started its agents yet, or that
ended before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.run_directory import Attempt, RunDir
from jobs.cli import bench, run_lookup
from jobs.cli.command_output import add_json, print_json_line, print_warning
from jobs.cli.log_tail import LogLine, LogTail, MergedTail, log_names, title_of
from jobs.cli.polling import PolledRuns, refresh_or_warn
from jobs.cli.terminal import Colour, has_colour, paint
from jobs.status.batch_log import batch_log_of
from jobs.status.run_folders import refuse_links
from jobs.status.run_state import RunState, read_state

_POLL_INTERVAL_S = 0.2
_COLOURS: tuple[Colour, ...] = ("cyan", "green", "yellow")
_TITLE_CHARS = len("rank 127")


def run(args: argparse.Namespace) -> int:
    found = run_lookup.find_run(args.runs, args.run)
    if args.follow:
        return _follow(found, args)
    refuse_links(found)
    state = read_state(found)
    if _wants_latest(args):
        (state,) = refresh_or_warn([state])
    tail: LogTail | MergedTail | None = _open_batch_log(state, args)
    attempt = _find_attempt(found, args.attempt)
    if tail is None and attempt is not None:
        tail = _open_log(attempt, args, ended=not state.active)
    if tail is None:
        raise ConfigError(_missing_log_message(found, args, state))
    _print_lines(tail.rest(), args)
    if not args.json and (results := bench.results_text([found])):
        print(f"\n{results}")
    add_json([state])
    return 0


def _follow(found: RunDir, args: argparse.Namespace) -> int:
    """Print the log of an attempt until the attempt has ended, then those of the attempts after it.

    The batch log is printed while a start of the job has no attempt. With `--attempt`, no other attempt is
    printed. The scheduler is queried as well: after the loss of a node,
    the files of the run do not show its end.
    """
    polled = PolledRuns(lambda: [read_state(found)])
    number: int | None = args.attempt
    batch: LogTail | None = None
    tail: LogTail | MergedTail | None = None
    printed_any = False
    notice = ""
    while True:
        # The state and the attempts are read before the log, so that no line before an end is missed.
        (state,) = polled.read()
        if polled.notice != notice and (notice := polled.notice):
            print_warning(notice)
        refuse_links(found)
        attempts = {attempt.number: attempt for attempt in found.attempts()}
        if number is None and attempts:
            number = max(attempts)
        later = [other for other in attempts if number is not None and other > number]
        ended = bool(later) or not state.active
        if tail is None and number in attempts:
            tail = _open_log(attempts[number], args, ended=ended)
        if tail is not None:
            _print_lines(tail.rest() if ended else tail.lines(), args)
            printed_any = True
        batch = batch or _open_batch_log(state, args)
        if batch is not None and _is_before_agents(state):
            _print_lines(batch.lines() if state.active else batch.rest(), args)
            printed_any = True
        if not ended:
            time.sleep(_POLL_INTERVAL_S)
            continue
        if args.attempt is not None or not later:
            break
        number, tail = min(later), None
        print(f"{run_lookup.run_label(found)}: attempt {number}", file=sys.stderr)
    if not printed_any:
        raise ConfigError(_missing_log_message(found, args, state))
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
    path = batch_log_of(state) if _wants_latest(args) and _is_before_agents(state) else None
    if path is None or not (state.before_agents or path.stat().st_size):
        return None
    return LogTail(path, "batch")


def _open_log(attempt: Attempt, args: argparse.Namespace, *, ended: bool) -> LogTail | MergedTail | None:
    """The requested log of an attempt; None if it does not exist."""
    if args.all:
        return MergedTail.of(attempt)
    path = _find_log(attempt, args, ended=ended)
    return LogTail(path) if path is not None else None


def _find_log(attempt: Attempt, args: argparse.Namespace, *, ended: bool) -> Path | None:
    """Path of the requested log of an attempt; None if it does not exist.

    Default: rank 0's log. An ended attempt without one has failed before rank 0 started: then node 0's log.
    """
    if args.node is not None:
        wanted = [attempt.node_log(args.node)]
    elif args.rank is not None:
        wanted = [attempt.rank_log(args.rank)]
    else:
        wanted = [attempt.rank_log(0), *([attempt.node_log(0)] if ended else [])]
    return next((path for path in wanted if path.exists()), None)


def _find_attempt(run: RunDir, number: int | None) -> Attempt | None:
    attempts = run.attempts()
    if number is None:
        return attempts[-1] if attempts else None
    return next((attempt for attempt in attempts if attempt.number == number), None)


def _missing_log_message(run: RunDir, args: argparse.Namespace, state: RunState) -> str:
    attempts = run.attempts()
    if not attempts:
        return f"{run_lookup.run_label(run)} has no log: it has not started (state: {state.state})"
    attempt = _find_attempt(run, args.attempt)
    if attempt is None:
        known = ", ".join(str(attempt.number) for attempt in attempts)
        return f"--attempt {args.attempt}: {run_lookup.run_label(run)} has attempts {known}"
    logs = ", ".join(log_names(attempt)) or "none"
    return f"{run_lookup.run_label(run)} has no such log in attempt {attempt.number}; existing logs: {logs}"


def _print_lines(lines: Iterator[LogLine], args: argparse.Namespace) -> None:
    coloured = args.all and has_colour(sys.stdout)
    for line in lines:
        text = line.text.decode(errors="replace").rstrip("\n")
        if args.json:
            print_json_line({"log": line.source, "line": text})
        else:
            sys.stdout.write(f"{_prefix(line.source, coloured)}{text}\n" if args.all else f"{text}\n")
    sys.stdout.flush()


def _prefix(source: str, coloured: bool) -> str:
    """`rank 3  | `, coloured by the number of the rank; nodes have no colour."""
    title = f"{title_of(source):<{_TITLE_CHARS}} |"
    number = source.removeprefix("rank-")
    return (
        f"{paint(title, _COLOURS[int(number) % len(_COLOURS)]) if coloured and number.isdigit() else title} "
    )
