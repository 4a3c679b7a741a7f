"""`job.on_end`: each event makes one call, and no hook harms the run that calls it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import hook
from jobs.core.processes import is_running


def made_run(root: Path, name: str, **outcome: Any) -> RunDir:
    """A run of the sweep `demo` with a closed attempt; without an outcome, an unfinished run."""
    run = RunDir(root / "demo" / name)
    write_json(run.run_json, {"config": {"job": {"on_end": "true"}}})
    if outcome:
        record = {"attempt": 0, "message": None, "next": None, **outcome}
        write_json(run.attempt(0).record, record)
        write_json(run.done if outcome["cause"] == "finished" else run.failed, record)
    return run


def end(run: RunDir) -> str | None:
    return hook.call_after(run, run.attempt(0))


def calls(root: Path) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted(hook.records_of(root / "demo").glob("*.json"))]


def call(root: Path, command: str, **fields: Any) -> tuple[str | None, dict[str, Any]]:
    """The message of a call at the end of the sweep, and its record."""
    failed = [{"run": f"n{number}", "cause": "crashed", "message": 'a "quote"'} for number in range(7)]
    event = hook.Event("sweep_end", root / "demo", {"done": 2, "failed": 7}, failed, **fields)
    record = hook.records_of(root / "demo") / "sweep_end-job-0000.json"
    return hook.call(command, event, record), read_json(record)


def test_the_command_gets_the_event_on_stdin_and_in_variables(tmp_path):
    page = tmp_path / "demo" / "report" / "report.html"
    command = "cat; echo; env | grep ^DISTTRAIN_"
    message, record = call(tmp_path, command, report=page)
    assert (message, record["exit_code"], record["timed_out"], record["command"]) == (None, 0, False, command)
    on_stdin, *variables = record["output"].splitlines()
    event = json.loads(on_stdin)
    assert event.items() <= record.items()
    assert event["summary"] == "demo: sweep ended: 2 done, 7 failed (n0, n1, n2, n3, n4 and 2 more)"
    assert [each["run"] for each in event["failed"]] == [f"n{number}" for number in range(7)]
    assert {
        "DISTTRAIN_EVENT=sweep_end",
        "DISTTRAIN_SWEEP=demo",
        f"DISTTRAIN_SUMMARY={event['summary']}",
        "DISTTRAIN_STATES=done=2 failed=7",
        "DISTTRAIN_FAILED=n0 n1 n2 n3 n4 n5 n6",
        f"DISTTRAIN_REPORT={page}",
    } <= {*variables}


def test_a_call_is_made_once(tmp_path):
    for _ in range(2):
        call(tmp_path, f"echo called >> '{tmp_path}/out'")
    assert (tmp_path / "out").read_text() == "called\n"


def test_a_hook_that_fails_is_one_line_without_its_secrets(tmp_path):
    message, record = call(tmp_path, "seq 2000; echo no https://hooks.example.org/T0/secret; exit 3")
    assert "exit code 3" in (message or "")
    assert record["output"].endswith("2000\nno https://hooks.example.org/***\n"), "the end of it"


def test_a_hook_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(hook, "TIMEOUT_S", 0.5)
    message, record = call(tmp_path, f"trap '' TERM; sleep 600 & echo $! > '{tmp_path}/pid'; yes")
    assert "0.5 s" in (message or "")
    assert (record["exit_code"], record["timed_out"], len(record["output"])) == (None, True, 2000)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_background_process_of_a_hook_delays_nothing(tmp_path):
    message, record = call(tmp_path, f"sleep 600 & echo $! > '{tmp_path}/pid'")
    assert (message, record["timed_out"]) == (None, False)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_signals_that_an_agent_blocks_reach_the_hook(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        _, record = call(tmp_path, "kill -TERM $$; echo survived")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert record["output"] == ""


@pytest.mark.parametrize(
    ("seconds", "failed"),
    [(0, ["a"]), (hook.QUIET_S, ["a", "f a b"]), (-60, ["a", "f a b"])],
    ids=["together", "later", "after the clock was set back"],
)
def test_of_runs_that_fail_together_one_makes_a_call_and_a_later_one_names_the_others(
    tmp_path, monkeypatch, seconds, failed
):
    others = {"c": "finished", "d": "cancelled", "e": None}
    for name, cause in others.items():
        made_run(tmp_path, name, **({"cause": cause} if cause else {}))
    made_run(tmp_path, "g", cause="preempted", next="requeue")
    assert end(made_run(tmp_path, "a", cause="crashed", message="no")) is None
    end(made_run(tmp_path, "b", cause="crashed"))
    now = time.time() + seconds
    monkeypatch.setattr(hook.time, "time", lambda: now)
    end(made_run(tmp_path, "f", cause="out_of_memory"))
    records = calls(tmp_path)
    assert [" ".join(each["run"] for each in record["failed"]) for record in records] == failed
    assert records[0]["failed"] == [{"run": "a", "cause": "crashed", "message": "no"}]
    assert records[0]["states"] == {"done": 1, "failed": 1, "unfinished": 3}
    assert {record["event"] for record in records} == {"run_failed"}


@pytest.mark.parametrize(
    "outcome",
    [
        {"cause": "finished"},
        {"cause": "stopped"},
        {"cause": "cancelled"},
        {"cause": "lost", "next": "requeue"},
    ],
)
def test_no_failure_makes_no_call(outcome, tmp_path):
    assert end(made_run(tmp_path, "a", **outcome)) is None
    assert calls(tmp_path) == []


def test_an_error_of_the_hook_raises_nothing(tmp_path):
    run = made_run(tmp_path, "a", cause="crashed")
    hook.records_of(tmp_path / "demo").parent.write_text("a file where the folder would be")
    assert (end(run) or "").startswith("job.on_end was not called: ")
