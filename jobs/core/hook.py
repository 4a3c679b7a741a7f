"""The hook of a sweep: the command `job.on_end`, called at the end of the sweep and after a run has failed.

    runs/<sweep>/.report/hooks/sweep_end-job-0003.json    the call by the report job of submission 3
    runs/<sweep>/.report/hooks/run_failed-0000.json       the first call about failed runs

Each file holds the event, and how the command ended. It is created before the command starts, so that a call
is made at most once. Standard library only.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from disttrain.masking import mask_lines
from disttrain.records.json_files import create_exclusive, read_json_or_none, to_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.journal import utc_now

TIMEOUT_S = 30.0
"""Limit of one call, in seconds. A failed run holds its nodes during the call."""
QUIET_S = 600.0
"""Shortest time between two calls about failed runs of a sweep, in seconds."""
_OUTPUT_CHARS = 2000
_NAMES_SHOWN = 5
_NO_FAILURE = ("finished", "stopped", "cancelled")
_URL = re.compile(r"(\w+://[^/\s'\"]*)/[^\s'\"]+")

EventName = Literal["sweep_end", "run_failed"]


@dataclass(frozen=True)
class Event:
    """The event that a hook is called about."""

    name: EventName
    folder: Path
    """Folder of the sweep."""
    states: Mapping[str, int]
    """Number of runs in each state."""
    failed: Sequence[Mapping[str, Any]]
    """`run`, `cause` and `message` of each failed run."""
    report: Path | None = None
    """Page of the report; None if there is none."""

    @property
    def summary(self) -> str:
        """`demo: sweep ended: 3 done, 1 failed (n2)`; no quotes or backslashes."""
        names = [str(each["run"]) for each in self.failed]
        hidden = len(names) - _NAMES_SHOWN
        shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()) if count)
        head = {"sweep_end": "sweep ended", "run_failed": "a run failed"}[self.name]
        return f"{self.folder.name}: {head}: {counts}" + (f" ({shown})" if names else "")

    def as_dict(self) -> dict[str, Any]:
        """JSON on the command's stdin."""
        return {
            "schema_version": 1,
            "event": self.name,
            "sweep": self.folder.name,
            "folder": str(self.folder.absolute()),
            "summary": self.summary,
            "states": dict(self.states),
            "failed": [dict(each) for each in self.failed],
            "report": None if self.report is None else str(self.report.absolute()),
        }

    def environment(self) -> dict[str, str]:
        """Environment variables of the command."""
        return {
            "DISTTRAIN_EVENT": self.name,
            "DISTTRAIN_SWEEP": self.folder.name,
            "DISTTRAIN_SUMMARY": self.summary,
            "DISTTRAIN_STATES": " ".join(f"{state}={count}" for state, count in self.states.items()),
            "DISTTRAIN_FAILED": " ".join(str(each["run"]) for each in self.failed),
            "DISTTRAIN_REPORT": "" if self.report is None else str(self.report.absolute()),
        }


def command_of(run: RunDir) -> str | None:
    """The hook that a run was submitted with."""
    config = (read_json_or_none(run.run_json) or {}).get("config") or {}
    command = (config.get("job") or {}).get("on_end")  # not in the records of older code
    return str(command) if command else None


def call(command: str, event: Event, record: Path) -> str | None:
    """Run the command once and record the result; one line about a call that failed, else None.

    Nothing is done if `record` exists. The command has `TIMEOUT_S` seconds.
    """
    called = {**event.as_dict(), "command": command, "called": utc_now()}
    pending = {"exit_code": None, "timed_out": False, "seconds": None, "output": None}
    if not create_exclusive(record, called | pending):
        return None
    result = _execute(command, event)
    write_json(record, called | result)
    if result["timed_out"]:
        return f"job.on_end was ended after {TIMEOUT_S:g} s: {record}"
    if result["exit_code"] != 0:
        return f"job.on_end failed with exit code {result['exit_code']}: {record}"
    return None


def call_after(run: RunDir, attempt: Attempt) -> str | None:
    """Call the hook if a closed attempt was the last one of a run, and failed; one line if the call failed.

    Of several runs that fail within `QUIET_S` seconds, one makes a call: the next call names the others. An
    error of the hook never raises.
    """
    try:
        command, closed = command_of(run), read_json_or_none(attempt.record) or {}
        if command is None or not _is_failure(closed):
            return None
        folder = run.path.parent
        record = _next_record(records_of(folder), "run_failed")
        if record is None:
            return None
        states, others = _recorded_ends(run)
        event = Event("run_failed", folder, states, [_failure(run, closed), *others])
        return call(command, event, record)
    except Exception as error:
        return f"job.on_end was not called: {type(error).__name__}: {error}"


def _is_failure(outcome: Mapping[str, Any]) -> bool:
    """Whether an attempt with this record ended its run as a failure."""
    return outcome.get("next") is None and outcome.get("cause") not in (None, *_NO_FAILURE)


def _failure(run: RunDir, outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": run.name, "cause": outcome.get("cause"), "message": outcome.get("message")}


def records_of(sweep: Path) -> Path:
    """Folder of the records of all calls for a sweep."""
    return sweep / ".report" / "hooks"


def free_record(folder: Path, stem: str) -> Path:
    """The first of `<stem>-0000.json`, `<stem>-0001.json`, ... that does not exist."""
    number = 0
    while (path := folder / f"{stem}-{number:04d}.json").exists():
        number += 1
    return path


def _next_record(folder: Path, name: EventName) -> Path | None:
    """Path of the next call about this event; None within `QUIET_S` seconds after the last one.

    Two runs that fail together get the same path, and one of them creates the file.
    """
    path = free_record(folder, name)
    last = read_json_or_none(path.with_name(f"{name}-{int(path.stem[-4:]) - 1:04d}.json"))
    if last is not None:
        called = datetime.fromisoformat(str(last["called"])).timestamp()
        if 0 <= time.time() - called < QUIET_S:
            return None
    return path


def _recorded_ends(run: RunDir) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Runs of the sweep by `DONE` and `FAILED`: their number in each state, and the failed ones but `run`."""
    states = {"done": 0, "failed": 1, "unfinished": 0}
    failed = []
    for folder in sorted(run.path.parent.iterdir()):
        other = RunDir(folder)
        if other.name == run.name or not other.run_json.exists():
            continue
        outcome = read_json_or_none(other.failed) or {}
        if other.done.exists():
            states["done"] += 1
        elif _is_failure(outcome):
            states["failed"] += 1
            failed.append(_failure(other, outcome))
        else:
            states["unfinished"] += 1
    return states, failed


def _execute(command: str, event: Event) -> dict[str, Any]:
    """Run the command in a shell with a session of its own, and keep the end of its output."""
    started = time.monotonic()
    # A file as stdin, since the command may leave a pipe unread.
    with open(os.memfd_create("event"), "w+b") as given:
        given.write(to_json(event.as_dict()).encode())
        given.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **event.environment()},
            start_new_session=True,
            preexec_fn=_unblock_signals,
        )
        with process:
            output = _output_until(process, started + TIMEOUT_S)
            timed_out = process.poll() is None
            if timed_out:
                os.killpg(process.pid, signal.SIGKILL)
            exit_code = process.wait()
    return {
        "exit_code": None if timed_out else exit_code,
        "timed_out": timed_out,
        "seconds": round(time.monotonic() - started, 3),
        "output": _masked(output.decode(errors="replace"))[-_OUTPUT_CHARS:],
    }


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # an agent blocks signals


def _output_until(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """The last bytes of the output, until the process has ended or the deadline has passed.

    A background process of the command may keep the pipe open, so the end of the output is not waited for.
    """
    assert process.stdout is not None
    pipe, kept = process.stdout.fileno(), b""
    os.set_blocking(pipe, False)
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if select.select([pipe], [], [], 0 if ended else 0.05)[0]:
            chunk = os.read(pipe, 65536)
            kept = (kept + chunk)[-4 * _OUTPUT_CHARS :]
            if chunk:
                continue
            if not ended:  # its output is closed
                time.sleep(0.05)
        if ended:
            break
    return kept


def _masked(text: str) -> str:
    """Output without paths of URLs, in which webhooks carry their secrets, and without masked variables."""
    return mask_lines(_URL.sub(r"\1/***", text))
