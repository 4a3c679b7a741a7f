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


def made_run(root: Path, name: str, command: str | None, **outcome: Any) -> RunDir:
    """A run of the sweep `demo` with a closed attempt; without an outcome, an unfinished run."""
    run = RunDir(root / "demo" / name)
    write_json(run.run_json, {"config": {"job": {"on_end": command}}})
    if outcome:
        record = {"attempt": 0, "message": None, "next": None, **outcome}
        write_json(run.attempt(0).record, record)
        write_json(run.done if outcome["cause"] == "finished" else run.failed, record)
    return run


def calls(root: Path) -> list[dict[str, Any]]:
    folder = hook.records_of(root / "demo")
    return [read_json(path) for path in sorted(folder.glob("*.json"))] if folder.exists() else []


def event(root: Path, **fields: Any) -> hook.Event:
    failed = [{"run": f"n{number}", "cause": "crashed", "message": 'a "quote"'} for number in range(7)]
    values = {"name": "sweep_end", "folder": root / "demo", "states": {"done": 2, "failed": 7}}
    return hook.Event(**values | {"failed": failed} | fields)


def test_the_command_gets_the_event_on_stdin_and_in_variables(tmp_path: Path) -> None:
    record = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json"
    command = "cat; echo; env | grep ^DISTTRAIN_ | sort"
    page = tmp_path / "demo" / "report" / "report.html"
    assert hook.call(command, event(tmp_path, report=page), record) is None
    called = read_json(record)
    assert (called["exit_code"], called["timed_out"], called["command"]) == (0, False, command)
    on_stdin, *variables = called["output"].splitlines()
    given = json.loads(on_stdin)
    summary = "demo: sweep ended: 2 done, 7 failed (n0, n1, n2, n3, n4 and 2 more)"
    assert (given["summary"], given["states"]) == (summary, {"done": 2, "failed": 7})
    assert [each["run"] for each in given["failed"]] == [f"n{number}" for number in range(7)]
    values = dict(line.partition("=")[::2] for line in variables)
    assert (
        values
        | {
            "DISTTRAIN_EVENT": "sweep_end",
            "DISTTRAIN_SWEEP": "demo",
            "DISTTRAIN_SUMMARY": summary,
            "DISTTRAIN_STATES": "done=2 failed=7",
            "DISTTRAIN_FAILED": "n0 n1 n2 n3 n4 n5 n6",
            "DISTTRAIN_REPORT": str(page),
        }
        == values
    )
    assert all(called[key] == value for key, value in given.items()), "the record lacks the event"


def test_a_call_is_made_once(tmp_path: Path) -> None:
    record, out = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json", tmp_path / "out"
    for _ in range(2):
        hook.call(f"echo called >> '{out}'", event(tmp_path), record)
    assert out.read_text() == "called\n"


def test_a_hook_that_fails_is_one_line(tmp_path: Path) -> None:
    record = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json"
    said = hook.call("echo no https://hooks.example.org/T0/secret; exit 3", event(tmp_path), record)
    assert said == f"job.on_end failed with exit code 3: {record}"
    assert read_json(record)["output"] == "no https://hooks.example.org/***\n", "the record holds a secret"


def test_a_hook_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "TIMEOUT_S", 0.5)
    record, pid = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json", tmp_path / "pid"
    said = hook.call(f"trap '' TERM; sleep 600 & echo $! > '{pid}'; wait", event(tmp_path), record)
    assert said == f"job.on_end was ended after 0.5 s: {record}"
    called = read_json(record)
    assert (called["exit_code"], called["timed_out"]) == (None, True)
    state = Path(f"/proc/{int(pid.read_text())}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_hook_that_prints_without_end_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "TIMEOUT_S", 0.5)
    record = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json"
    hook.call("yes", event(tmp_path), record)
    assert len(read_json(record)["output"]) <= 2000


def test_a_background_process_of_a_hook_delays_nothing(tmp_path: Path) -> None:
    record, pid = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json", tmp_path / "pid"
    assert hook.call(f"sleep 600 & echo $! > '{pid}'", event(tmp_path), record) is None
    assert read_json(record)["seconds"] < hook.TIMEOUT_S
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_signals_that_an_agent_blocks_reach_the_hook(tmp_path: Path) -> None:
    record = hook.records_of(tmp_path / "demo") / "sweep_end-job-0000.json"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        hook.call("kill -TERM $$; echo survived", event(tmp_path), record)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert read_json(record)["output"] == ""


def test_of_runs_that_fail_together_one_makes_a_call(tmp_path: Path) -> None:
    first = made_run(tmp_path, "a", "true", cause="crashed", message="no")
    made_run(tmp_path, "b", "true", cause="finished")
    made_run(tmp_path, "c", "true")
    made_run(tmp_path, "d", "true", cause="preempted", next="requeue")
    made_run(tmp_path, "e", "true", cause="cancelled")
    assert hook.call_after(first, first.attempt(0)) is None
    second = made_run(tmp_path, "f", "true", cause="out_of_memory")
    hook.call_after(second, second.attempt(0))
    (called,) = calls(tmp_path)
    assert called["event"] == "run_failed"
    assert called["failed"] == [{"run": "a", "cause": "crashed", "message": "no"}]
    assert called["states"] == {"done": 1, "failed": 1, "unfinished": 3}


def test_a_later_call_names_the_runs_that_failed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [made_run(tmp_path, name, "true", cause="crashed") for name in "ab"]
    for run in runs:
        hook.call_after(run, run.attempt(0))
    now = time.time() + hook.QUIET_S
    monkeypatch.setattr(hook.time, "time", lambda: now)
    third = made_run(tmp_path, "c", "true", cause="hung")
    hook.call_after(third, third.attempt(0))
    assert [[each["run"] for each in called["failed"]] for called in calls(tmp_path)] == [
        ["a", "b"],
        ["c", "a", "b"],
    ]


@pytest.mark.parametrize(
    "outcome",
    [
        {"cause": "finished"},
        {"cause": "stopped"},
        {"cause": "cancelled"},
        {"cause": "lost", "next": "requeue"},
    ],
    ids=lambda outcome: outcome["cause"],
)
def test_no_failure_makes_no_call(outcome: dict[str, str], tmp_path: Path) -> None:
    run = made_run(tmp_path, "a", "true", **outcome)
    assert hook.call_after(run, run.attempt(0)) is None
    assert calls(tmp_path) == []


def test_an_error_of_the_hook_raises_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path, "a", "true", cause="crashed")
    hook.records_of(tmp_path / "demo").parent.write_text("a file where the folder would be")
    said = hook.call_after(run, run.attempt(0))
    assert said is not None
    assert said.startswith("job.on_end was not called: ")
