"""The verbs of submit.py, in process, on a cluster that takes jobs and does nothing with them.

The fixture `cluster` of the unit tests is that cluster, and a folder to be in.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.cli.arguments import build_parser, parsers
from jobs.core import journal
from jobs.core.processes import host
from jobs.core.requeue_policy import RULES
from jobs.status.run_state import read_runs, read_state

RUNS = Path("runs")
TINY = """\
model: {kind: mlp}
data: {kind: digits}
train: {steps: 10, local_batch_size: 8}
"""
STATES = ("planned", "queued", "running", "done", "failed", "cancelled", "lost", "corrupt")
"""Those that `make_run` makes and `status` tells apart."""


def ask(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> str:
    """What a command line prints."""
    given = submit.main(shlex.split(command))
    assert given == code, f"{command}: exit code {given}"
    return capsys.readouterr().out


def ask_json(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> dict[str, Any]:
    """The document of a command line."""
    return parse_document(ask(capsys, f"{command} --json", code))


def refused(capsys: pytest.CaptureFixture[str], command: str, code: int = 2) -> str:
    """What a command line that is refused prints on stderr."""
    capsys.readouterr()
    assert submit.main(shlex.split(command)) == code, command
    return capsys.readouterr().err


def parse_document(out: str) -> dict[str, Any]:
    """The document that a command printed: all of stdout, or the last line of a stream."""
    try:
        return json.loads(out)
    except ValueError:
        return [json.loads(line) for line in out.splitlines()][-1]


def states() -> dict[str, str]:
    return {state.name: state.state for state in read_runs(RUNS)}


def end(run: RunDir, cause: str) -> None:
    """Close the newest submission of a run as its job would have."""
    state = read_state(run)
    assert state.submission is not None
    assert state.code_hash is not None
    process = {"host": host(), "boot": "before", "pid": 1, "start_ticks": 0}
    attempt = journal.claim(
        run, state.submission, process=process, job_id=state.job_id, code_hash=state.code_hash
    )
    outcome = {"cause": cause, "attempt": attempt, "message": None, "retryable": RULES[cause].retryable}
    write_json(run.done if cause == "finished" else run.failed, outcome)


def verbs() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each verb and its parser, `cluster up` as two words."""
    return parsers(build_parser())
