"""`logs`: print the log of one rank or node; `--follow` continues until the run ends."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import to_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.cli import run_lookup
from jobs.status.run_state import read_state

_POLL_INTERVAL_S = 0.2
_CHUNK_BYTES = 1 << 20


def run(args: argparse.Namespace) -> int:
    found = run_lookup.find_run(args.runs, args.run)
    while True:
        active = read_state(found).active
        path = _find_log(found, args, active)
        if path is not None:
            break
        if not (args.follow and active):
            raise ConfigError(_missing_log_message(found, args))
        time.sleep(_POLL_INTERVAL_S)
    line = b""
    with open(path, "rb") as log:
        while True:
            ended = not (
                args.follow and read_state(found).active
            )  # checked before reading, so that no line is missed
            while chunk := log.readline(_CHUNK_BYTES):
                line += chunk
                if line.endswith(b"\n"):
                    _print_line(line, path.stem, args.json)
                    line = b""
            if ended:
                break
            sys.stdout.flush()
            time.sleep(_POLL_INTERVAL_S)
    if line:
        _print_line(line, path.stem, args.json)
    return 0


def _find_log(run: RunDir, args: argparse.Namespace, active: bool) -> Path | None:
    """Path of the requested log; None if it does not exist.

    Default: rank 0's log. An ended run without one has failed before rank 0 started: then node 0's log.
    """
    attempt = _find_attempt(run, args.attempt)
    if attempt is None:
        return None
    if args.node is not None:
        wanted = [attempt.node_log(args.node)]
    elif args.rank is not None:
        wanted = [attempt.rank_log(args.rank)]
    else:
        wanted = [attempt.rank_log(0), *([] if active else [attempt.node_log(0)])]
    return next((path for path in wanted if path.exists()), None)


def _find_attempt(run: RunDir, number: int | None) -> Attempt | None:
    attempts = run.attempts()
    if number is None:
        return attempts[-1] if attempts else None
    return next((attempt for attempt in attempts if attempt.number == number), None)


def _missing_log_message(run: RunDir, args: argparse.Namespace) -> str:
    attempts = run.attempts()
    if not attempts:
        return f"{run_lookup.run_label(run)} has no log: it has not started (state: {read_state(run).state})"
    attempt = _find_attempt(run, args.attempt)
    if attempt is None:
        known = ", ".join(str(attempt.number) for attempt in attempts)
        return f"--attempt {args.attempt}: {run_lookup.run_label(run)} has attempts {known}"
    logs = ", ".join(sorted(path.stem for path in attempt.path.glob("*.log"))) or "none"
    return f"{run_lookup.run_label(run)} has no such log in attempt {attempt.number}; existing logs: {logs}"


def _print_line(line: bytes, source: str, as_json: bool) -> None:
    text = line.decode(errors="replace").rstrip("\n")
    sys.stdout.write((to_json({"log": source, "line": text}) if as_json else text) + "\n")
