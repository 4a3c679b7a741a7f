"""The report names warnings and cost of the pre-flight, and runs without one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.report import preflight_text
from analysis.runs.preflight import COLUMNS, preflight_columns
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.node.preflight.checks import Problem
from jobs.node.preflight.verdict import verdict_record

SLOW = Problem("links", "the link of node n2 moves 40 MB/s", "look", (), "warning")


def write(run: RunDir, attempt: int, mode: str, *problems: Problem, seconds: float) -> None:
    record = verdict_record(attempt, mode, ["n1", "n2"], [], {}, problems, seconds=seconds)
    write_json(run.attempt(attempt).preflight, record)


def row(run: RunDir) -> dict[str, object]:
    return {"sweep": "s", "run": run.name, **dict.fromkeys(COLUMNS), **preflight_columns(run)}


def table(*runs: RunDir) -> pd.DataFrame:
    return pd.DataFrame([row(run) for run in runs]).astype(COLUMNS)


def test_warnings_cost_and_skipped_checks(tmp_path: Path) -> None:
    warned, skipped, old = (RunDir(tmp_path / name) for name in ("warned", "skipped", "old"))
    write(warned, 0, "basic", seconds=1.5)
    write(warned, 1, "full", SLOW, seconds=2.0)
    write(skipped, 0, "off", seconds=0.0)
    runs = table(warned, skipped, old)
    assert preflight_text.warnings(runs) == ["Pre-flight of s/warned: the link of node n2 moves 40 MB/s."]
    cost, without = preflight_text.notes(runs)
    assert "took 3.5 s in 1 run, at most 3.5 s in one" in cost
    assert without == "1 run started without checks of the nodes (--skip-preflight)."


def test_nothing_of_runs_without_a_record(tmp_path: Path) -> None:
    runs = table(RunDir(tmp_path / "old"))
    assert preflight_text.warnings(runs) == preflight_text.notes(runs) == []
