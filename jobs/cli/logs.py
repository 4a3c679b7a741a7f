"""`logs`: print the log of one rank or node, or of all; `--follow` goes on through all further attempts.

The batch log, the output of the set-up, is printed for a job that has not started its agents yet, or that
ended before.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from jobs.cli import options

if TYPE_CHECKING:
    from disttrain.records.run_directory import Attempt, RunDir
    from jobs.cli.log_tail import LogTail
    from jobs.cli.terminal import Colour
    from jobs.status.run_state import RunState

_POLL_INTERVAL_S = 0.2
_COLOURS: tuple[Colour, ...] = ("cyan", "green", "yellow")
_TITLE_CHARS = len("rank 127")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser)
    options.value(parser, "run", "RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    which = parser.add_mutually_exclusive_group()
    options.value(which, "--rank", "R", "log of this rank (0)", type=int)
    options.value(which, "--node", "N", "log of this node: agent and torchrun", type=int)
    options.flag(which, "--all", "logs of all ranks and nodes, by time")
    options.value(parser, "--attempt", "K", "attempt (the last)", type=int)


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError
    from jobs.cli import bench, selection
    from jobs.cli.command_output import add_json
    from jobs.status.run_folders import names_in
    from jobs.status.run_state import read_state

    run = selection.find_run(args.runs, args.run)
    if args.follow:
        is_printed, state = _follow(run, args)
    else:
        names_in(run)
        state = read_state(run)
        if _wants_latest(args):
            (state,) = selection.refresh_or_warn([state])
        attempts = {attempt.number: attempt for attempt in run.attempts()}
        attempt = attempts.get(max(attempts, default=0) if args.attempt is None else args.attempt)
        tail = _open_batch_log(state, args)
        if tail is None and attempt is not None:
            tail = _open_log(attempt, args, ended=not state.active)
        is_printed = tail is not None
        if tail is not None:
            _print_lines(tail, args, ended=True)
    if not is_printed:
        raise ConfigError(_missing_log_message(args, state))
    if not args.follow and (results := bench.results_text([run])):
        print(f"\n{results}")
    add_json([state])
    return 0


def _follow(run: RunDir, args: argparse.Namespace) -> tuple[bool, RunState]:
    """Print the log of an attempt until the attempt has ended, then those of the attempts after it.

    The batch log is printed while a start of the job has no attempt. With `--attempt`, no other attempt is
    printed. The scheduler is queried as well: after the loss of a node, the files of the run do not show its
    end. Returns whether there was a log, and the last state.
    """
    import sys

    from jobs.cli.command_output import print_warning
    from jobs.cli.follow import PolledRuns
    from jobs.status.run_folders import names_in
    from jobs.status.run_state import read_state

    polled = PolledRuns(lambda: [read_state(run)])
    number: int | None = args.attempt
    batch = tail = None
    is_printed = False
    notice = ""
    while True:
        # The state and the attempts are read before the log, so that no line before an end is missed.
        (state,) = polled.read()
        if polled.notice != notice and (notice := polled.notice):
            print_warning(notice)
        names_in(run)
        attempts = {attempt.number: attempt for attempt in run.attempts()}
        if number is None and attempts:
            number = max(attempts)
        later = [other for other in attempts if number is not None and other > number]
        ended = bool(later) or not state.active
        if tail is None and number in attempts:
            tail = _open_log(attempts[number], args, ended=ended)
        batch = batch or _open_batch_log(state, args)
        for log, is_due in ((tail, True), (batch, _is_before_agents(state))):
            if log is not None and is_due:
                _print_lines(log, args, ended=ended if log is tail else not state.active)
                is_printed = True
        if not ended:
            time.sleep(_POLL_INTERVAL_S)
            continue
        if args.attempt is not None or not later:
            return is_printed, state
        number, tail = min(later), None
        print(f"{state.label}: attempt {number}", file=sys.stderr)


def _wants_latest(args: argparse.Namespace) -> bool:
    """Whether no log is named on the command line."""
    return args.attempt is None and args.rank is None and args.node is None


def _is_before_agents(state: RunState) -> bool:
    """Whether the newest start of the run's job has no attempt, as far as files and scheduler show."""
    return state.before_agents or not state.claimed


def _open_batch_log(state: RunState, args: argparse.Namespace) -> LogTail | None:
    """The batch log, if it is the latest log of the run and none is named."""
    from jobs.cli.log_tail import LogTail
    from jobs.status.batch_log import batch_log_of

    path = batch_log_of(state) if _wants_latest(args) and _is_before_agents(state) else None
    if path is None or not (state.before_agents or path.stat().st_size):
        return None
    return LogTail(lambda: {"batch": path})


def _open_log(attempt: Attempt, args: argparse.Namespace, *, ended: bool) -> LogTail | None:
    """The requested log of an attempt; None if it does not exist.

    Default: rank 0's log. An ended attempt without one has failed before rank 0 started: then node 0's log.
    """
    from jobs.cli.log_tail import LogTail, logs_of

    if args.all:
        return LogTail(lambda: logs_of(attempt)) if logs_of(attempt) else None
    if args.node is not None:
        paths = [attempt.node_log(args.node)]
    else:
        paths = [attempt.rank_log(args.rank or 0), *[attempt.node_log(0)] * (ended and args.rank is None)]
    path = next((path for path in paths if path.exists()), None)
    return LogTail(lambda: {path.stem: path}) if path else None


def _missing_log_message(args: argparse.Namespace, state: RunState) -> str:
    from jobs.cli.log_tail import logs_of

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
    import sys

    from jobs.cli.command_output import print_json_line
    from jobs.cli.log_tail import title_of
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
