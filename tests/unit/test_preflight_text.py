"""The report names warnings and cost of the pre-flight, and runs without one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from analysis.read.attempts import PREFLIGHT_COLUMNS, preflight_columns
from analysis.report import preflight_text
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.node.preflight.checks import Problem
from jobs.node.preflight.verdict import verdict_record

SLOW = Problem("links", "the link of node n2 moves 40 MB/s", "look", (), "warning")


def write(run: RunDir, attempt: int, mode: str, *problems: Problem, seconds: float) -> None:
    record = verdict_record(attempt, mode, ["n1", "n2"], [], {}, problems, seconds=seconds)
    write_json(run.attempt(attempt).preflight, record)


def row(run: RunDir) -> dict[str, object]:
    return {"sweep": "s", "run": run.name, **dict.fromkeys(PREFLIGHT_COLUMNS), **preflight_columns(run)}


def table(*runs: RunDir) -> pd.DataFrame:
    return pd.DataFrame([row(run) for run in runs]).astype(PREFLIGHT_COLUMNS)


def test_warnings_cost_and_skipped_checks(tmp_path: Path) -> None:
    warned, skipped, old = (RunDir(tmp_path / name) for name in ("warned", "skipped", "old"))
    write(warned, 0, "basic", seconds=1.5)
    write(warned, 1, "full", SLOW, seconds=2.0)
    write(skipped, 0, "off", seconds=0.0)
    runs = table(warned, skipped, old)
    assert preflight_text.warnings(runs) == [
        "Pre-flight of s/warned: the link of node n2 moves 40 MB/s. "
        "`report --reject-warned` leaves such runs out."
    ]
    assert "--reject-warned" not in preflight_text.warnings(runs[:1])[0], "it would leave no run"
    cost, without = preflight_text.notes(runs)
    assert cost == (
        "Before the start of 1 run, its nodes were checked for 3.5 s. The time includes the wait for nodes "
        "that started later."
    )
    both, _ = preflight_text.notes(pd.concat([runs, runs]))
    assert "start of 2 runs, the checks of their nodes took 7.0 s in total, at most 3.5 s in one run" in both
    assert without == "1 run started without checks of the nodes (--skip-preflight)."


@pytest.mark.parametrize(
    ("starts", "verdict"),
    [
        (["warned", "passed"], "warned"),  # steps of the first start may be in the figures
        (["refused", "passed"], "passed"),  # nothing was trained
        (["passed", "skipped"], "skipped"),
        (["refused"], "refused"),
    ],
)
def test_a_run_counts_as_warned_if_any_of_its_starts_was(
    tmp_path: Path, starts: list[str], verdict: str
) -> None:
    run = RunDir(tmp_path / "run")
    problems = {"warned": [SLOW], "refused": [dataclasses.replace(SLOW, severity="error")]}
    for number, start in enumerate(starts):
        mode = "off" if start == "skipped" else "basic"
        write(run, number, mode, *problems.get(start, []), seconds=0.0)
    assert preflight_columns(run)["preflight"] == verdict


def test_nothing_of_runs_without_a_record(tmp_path: Path) -> None:
    runs = table(RunDir(tmp_path / "old"))
    assert preflight_text.warnings(runs) == preflight_text.notes(runs) == []


def test_the_first_runs_left_out_are_named() -> None:
    names = [f"r{number}" for number in range(10)]
    runs = pd.DataFrame(
        {"sweep": "s", "run": names, "rejected": True, "included": False, "preflight_warning": "slow"}
    )
    named = "; ".join(f"s/{name}: slow" for name in names[:8])
    text = "Left out for their pre-flight (--reject-warned): {0} of {0} finished runs: {1}."
    assert preflight_text.rejected(runs) == [text.format(10, f"{named}; and 2 more")]
    assert preflight_text.rejected(runs[:8]) == [text.format(8, named)]
