"""Notices of the validity box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.efficiency import scaling_curves
from analysis.report import notices
from analysis.runs.load import load
from analysis.study import Study
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_sweep


def warnings_of(sweep: Path) -> list[str]:
    table = load([sweep])
    found = notices.of_study(Study(table, scaling_curves(table)), ())
    return [notice.text for notice in found if notice.kind == "warning"]


def test_ranks_without_step_records_are_named_in_the_validity_box(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, repeats=2, all_ranks=True)
    (sweep / "n4x1-r1" / "attempts" / "000" / "steps-00002.jsonl").unlink()
    (warning,) = warnings_of(sweep)
    assert warning.startswith("Step records are incomplete")
    assert warning.endswith(" default/n4x1-r1: no step records of rank 2 of 4.")


@pytest.mark.parametrize(
    ("host_percent", "workers", "warned"), [(180.0, 0, True), (100.0, 0, False), (180.0, 1, False)]
)
def test_load_of_other_processes_on_a_cpu_is_said(
    tmp_path: Path, host_percent: float, workers: int, warned: bool
) -> None:
    """The rank keeps about 0.9 of 2 processors busy."""
    sweep = fake_sweep(tmp_path, nodes=(1,))
    run = RunDir(sweep / "n1x1-r1")
    write_json(run.run_json, merged(read_json(run.run_json), {"config": {"data": {"workers": workers}}}))
    path = run.attempt(0).host_samples(0)
    lines = [json.loads(line) | {"host_cpu_percent": host_percent} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    warnings = warnings_of(sweep)
    assert len(warnings) == warned
    if warned:
        assert warnings[0].startswith(
            "Other processes used the processors during 1 of 3 runs: in default/n1x1-r1"
        )


def merged(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The record with values replaced, section by section."""
    nested = {name: merged(record[name], value) for name, value in changes.items() if isinstance(value, dict)}
    return record | changes | nested
