"""The tables of `status`: throughput of running runs, one line for each sweep, attempts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli.follow import change_line
from jobs.cli.tables import state_note, status_table, sweep_table
from jobs.status.run_state import RunState, read_runs, read_state
from tests.support.states import make_run


def set_rates(run: RunDir, **rates: float | None) -> None:
    """Rewrite the rates in `progress.json`; `mean=None` is a run in its warm-up."""
    progress = read_json(run.progress)
    for name in ("samples_per_s", "mean_samples_per_s"):
        progress.pop(name)
    write_json(run.progress, progress | rates)


def test_throughput_of_a_running_run_is_the_mean_over_its_measured_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, "s/a", "running")
    state = read_state(run)
    assert (state.samples_per_s, state.live_samples_per_s) == (812.5, 790.25)
    assert " 812.5 " in status_table([state])
    assert "  812.5 samples/s  " in change_line(state)
    set_rates(run, samples_per_s=790.25, mean_samples_per_s=None)
    state = read_state(run)
    assert (state.samples_per_s, state.live_samples_per_s) == (None, 790.25)
    assert " 790.2 now " in status_table([state])
    assert "  790.2 samples/s now  " in change_line(state)


def test_no_live_rate_remains_after_the_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, "s/a", "failed")
    set_rates(run, samples_per_s=790.25, mean_samples_per_s=None)
    assert (read_state(run).samples_per_s, read_state(run).live_samples_per_s) == (None, None)


def test_each_sweep_has_a_line_with_counts_and_newest_activity(tmp_path: Path) -> None:
    for number, state in enumerate(("done", "done", "failed", "running", "planned")):
        make_run(tmp_path, f"first/n{number}", state)
    run = make_run(tmp_path, "second/a", "failed")
    for path in (run.failed, run.progress):
        write_json(path, read_json(path) | {"ended": "2026-01-01T00:00:00.000+00:00", "updated": 1.0})
    for path in run.submissions.iterdir():
        write_json(path, read_json(path) | {"time": "2026-01-01T00:00:00.000+00:00"})
    head, first, second = sweep_table(read_runs(tmp_path)).splitlines()
    assert head.split() == ["SWEEP", "DONE", "STATES", "CHANGED"]
    assert first.startswith("first    2/5  1 running, 1 failed, 1 planned, 2 done  ")
    assert first.endswith(" s ago")
    assert second.startswith("second   0/1  1 failed ")
    days = (time.time() - 1767225600) // 86400
    assert f" {days:.0f} d " in second or f" {days + 1:.0f} d " in second


def test_the_note_counts_attempts_as_show_lists_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, "s/a", "failed")
    run.attempt(0).path.mkdir(parents=True)
    claim = run.submissions / "0000.claim.json"
    write_json(claim, read_json(claim) | {"attempt": 1})
    write_json(run.failed, read_json(run.failed) | {"attempt": 1})
    assert state_note(read_state(run)) == "2 attempts; crashed: rank 1: ValueError: no"


def test_a_script_may_report_its_step_without_their_number(tmp_path: Path) -> None:
    state = RunState(RunDir(tmp_path / "s" / "a"), "running", step=19)
    assert "step 19" in change_line(state).split("  ")
    assert status_table([state]).split()[-1] == "19"
    assert status_table([replace(state, steps=40)]).split()[-1] == "19/40"
