"""Notices of the validity box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.efficiency import scaling_curves
from analysis.read.frames import load
from analysis.report import limits_text, notices
from analysis.report.run_records import provenance
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


def test_nodes_of_a_mini_cluster_are_one_machine(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    table = load([sweep])
    attempt = RunDir(sweep / "n2x1-r0").attempt(0)
    write_json(attempt.record, read_json(attempt.record) | {"cluster": "slurm"})
    assert not [text for text in notes_of(table) if "one machine" in text]
    write_json(attempt.node_record(0), {"slurm": {"SLURM_CONF": "/run/disttrain-demo/slurm.conf"}})
    (text,) = [text for text in notes_of(table) if "one machine" in text]
    assert (
        text == "The nodes are network namespaces of one machine with 2 processors: up to 2 nodes share it."
    )
    study = Study(table, scaling_curves(table))
    assert "scaling over machines (the nodes are parts of one machine)" in limits_text.limits(study)
    (items,) = [each.values for each in provenance(table) if each.name == "Cluster"]
    assert "Slurm mini-cluster demo on one machine" in items


def test_the_emulated_part_and_one_machine_are_in_the_banner(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1, emulated=True)
    for run in map(RunDir, sorted(sweep.iterdir())):
        model = {"kind": "emulated", "work": "wait", "table": None, "forward_s": 0.08, "backward_s": 0.16}
        write_json(run.run_json, merged(read_json(run.run_json), {"config": {"model": model}}))
    attempt = RunDir(sweep / "n2x1-r0").attempt(0)
    write_json(attempt.record, read_json(attempt.record) | {"cluster": "local"})
    table = load([sweep])
    (banner,) = [
        each.text
        for each in notices.of_study(Study(table, scaling_curves(table)), ())
        if each.kind == "emulated"
    ]
    assert banner.startswith(
        "Emulated: a step's compute is a wait of 80.0 ms (forward) and 160 ms (backward); communication is "
        "real."
    )
    assert banner.endswith(" up to 2 nodes share it.")
    assert not [text for text in notes_of(table) if "one machine" in text]


def notes_of(table: pd.DataFrame) -> list[str]:
    found = notices.of_study(Study(table, scaling_curves(table)), ())
    return [notice.text for notice in found if notice.kind == "note"]


def merged(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The record with values replaced, section by section."""
    nested = {name: merged(record[name], value) for name, value in changes.items() if isinstance(value, dict)}
    return record | changes | nested


@pytest.mark.parametrize(("skipped", "kind"), [(0, None), (1, "note"), (2, "warning")])
def test_skipped_updates_are_in_the_validity_box(tmp_path: Path, skipped: int, kind: str | None) -> None:
    """One of 110 steps is below one percent, two are above."""
    table = load([fake_sweep(tmp_path, nodes=(1,), skipped_steps=skipped)])
    found = notices.of_study(Study(table, scaling_curves(table)), ())
    shown = [notice for notice in found if notice.text.startswith("Updates were skipped in 3 of 3 runs")]
    assert [notice.kind for notice in shown] == ([kind] if kind else [])
    for notice in shown:
        assert f"{3 * skipped} steps in all, most in default/n1x1-r0 ({skipped} of 110)." in notice.text


def differences_of(sweep: Path) -> list[str]:
    return [warning for warning in warnings_of(sweep) if warning.startswith("Compared runs differ")]


def test_unequal_threads_of_compared_runs_are_warned_of(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    assert differences_of(sweep) == []
    for run in map(RunDir, sweep.glob("n2x1-*")):
        record = read_json(run.run_json)
        write_json(run.run_json, merged(record, {"config": {"resources": {"threads_per_rank": 4}}}))
    assert differences_of(sweep) == [
        "Compared runs differ in compute threads of a rank (OMP_NUM_THREADS): 1, 4."
    ]


@pytest.mark.parametrize(
    ("processors", "warned"), [({1: 2, 2: 4}, False), ({1: 2, 2: 2}, False), ({1: 4, 2: 2}, True)]
)
def test_processors_are_unequal_where_they_differ_on_the_node_and_for_each_rank(
    tmp_path: Path, processors: dict[int, int], warned: bool
) -> None:
    """One and two ranks on one node."""
    sweep = fake_sweep(tmp_path, nodes=(1,), gpus_per_node=(1, 2))
    for ranks, count in processors.items():
        for path in sweep.glob(f"n1x{ranks}-*/metrics.json"):
            write_json(path, read_json(path) | {"cpu_count": count})
    expected = ["Compared runs differ in number of processors: 2, 4."] if warned else []
    assert differences_of(sweep) == expected
