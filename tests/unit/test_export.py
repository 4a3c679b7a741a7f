"""`report --csv` and `--parquet`: the tables behind the page, as raw numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import submit
from analysis.read.frames import load_frames
from analysis.report.export import write_tables
from analysis.report.section import Column, Section, Table
from analysis.report.sections import build_all
from analysis.stats.estimates import Estimate
from analysis.study import Study
from disttrain.records.json_files import read_json
from tests.support.fake_runs import fake_sweep
from tests.support.studies import runs_of, study_of

READERS = {"csv": pd.read_csv, "parquet": pd.read_parquet}


@pytest.mark.usefixtures("empty_pngs")
@pytest.mark.parametrize("kind", READERS)
def test_the_flag_writes_the_tables_of_the_page(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, folder = fake_sweep(tmp_path / "runs", nodes=(1,), repeats=2).parent, tmp_path / "tables"
    command = ["report", "--runs", str(runs), f"--{kind}"]
    assert submit.main([*command, str(folder)]) == 0
    index = read_json(folder / "tables.json")
    files = {each["file"] for each in index["tables"]}
    assert files == {path.name for path in folder.iterdir()} - {"tables.json"}
    recorded = load_frames([runs / "default"]).runs
    read = {name: READERS[kind](folder / f"{name}.{kind}") for name in ("runs", "all_runs")}
    assert read["runs"]["samples_per_s"].tolist() == pytest.approx(
        recorded["samples_per_s"].tolist(), rel=1e-15
    )
    assert read["runs"]["run_path"].tolist() == recorded["path"].tolist()
    assert list(read["all_runs"]) == list(recorded)
    (tmp_path / "file").write_text("")
    assert submit.main([*command, str(tmp_path / "file")]) == 2
    assert f"error: --{kind}: cannot write '{tmp_path / 'file'}'" in capsys.readouterr().err


def test_every_table_and_every_figure_of_the_page_has_a_file_with_its_numbers(tmp_path: Path) -> None:
    study = study_of(nodes=(1, 2), repeats=2, all_ranks=True)
    sections = build_all(study)
    write_tables(study, sections, tmp_path, "csv")
    index = read_json(tmp_path / "tables.json")
    assert (index["emulated"], index["ingested"]) == (False, False)
    frames = {
        each["file"].removesuffix(".csv"): pd.read_csv(tmp_path / each["file"]) for each in index["tables"]
    }
    assert {table.name for section in sections for table in section.tables} <= frames.keys()
    assert all(len(frame) for frame in frames.values())
    shown = [name for each in index["tables"] for name in each["figures"]]
    assert sorted(shown) == sorted(figure.name for section in sections for figure in section.figures)
    for name, series in frames["step_times"].groupby("run")["step_s"]:
        (run,) = [run for run in study.runs if run.name == name]
        assert series.tolist() == pytest.approx(run.step_durations_s)
    losses = {point.loss for run in study.runs for point in run.curves["loss_history"]}
    assert losses <= set(frames["training_by_step"]["loss"])
    assert set(frames["lateness"]["rank"]) == {0, 1}


def test_estimates_runs_and_units_are_columns_of_one_type(tmp_path: Path) -> None:
    study = Study(runs_of(nodes=(1,), repeats=2, emulated=True), [], {})
    first, second = study.runs
    columns = [
        Column("run"),
        Column("throughput", unit="samples/s"),
        Column("peak", unit="B"),
        Column("whole", unit="span"),
        Column("step_s", unit="s"),
        Column("share", unit="share"),
        Column("count", unit="count"),
        Column("ok"),
        Column("bound"),
    ]
    rows: list[list[Any]] = [
        [first, Estimate(2.5, 2.0, 3.0, 4), 2**40, 1, 0.5, 1, 7, True, "none"],
        [second, None, None, 2.5, 0.5, 0.5, None, False, 0.5],
    ]
    section = Section(
        "s", "S", "", tables=[Table("t", "Caption.", columns, rows, [[first], [first, second]])]
    )
    for kind, reader in READERS.items():
        write_tables(study, [section], tmp_path / kind, kind)
        frame = reader(tmp_path / kind / f"t.{kind}")
        rate = "throughput_samples_per_s"
        assert list(frame) == [
            "run", "run_path", rate, *(f"{rate}_{part}" for part in ("low", "high", "repeats", "basis")),
            "peak_bytes", "whole_s", "step_s", "share", "count", "ok", "bound", "sources", "emulated",
        ]  # fmt: skip
        row, other = frame.to_dict("records")
        assert [row["run"], row["run_path"], row["peak_bytes"]] == ["n1x1-r0", first.path, 2**40]
        assert [row[rate], row[f"{rate}_low"], row[f"{rate}_high"], row[f"{rate}_repeats"]] == [
            2.5,
            2.0,
            3.0,
            4,
        ]
        assert all(pd.isna(other[name]) for name in (rate, "peak_bytes", "count"))
        assert frame["ok"].tolist() == [True, False]
        assert frame["bound"].astype(str).tolist() == ["none", "0.5"]
        assert other["sources"] == f"{first.path} {second.path}"
    types = pd.read_parquet(tmp_path / "parquet" / "t.parquet").dtypes.astype(str)
    assert types[["whole_s", "share", "count"]].tolist() == ["Float64", "Float64", "Int64"]


def test_files_of_an_earlier_report_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    study = Study(runs_of(nodes=(1,), repeats=1), [], {})
    section = Section("s", "S", "", tables=[Table("old", "", [Column("n", "n", "count")], [[1]])])
    write_tables(study, [section], tmp_path, "csv")
    (tmp_path / "mine.csv").write_text("1")
    write_tables(study, [], tmp_path, "csv")
    assert {path.name for path in tmp_path.iterdir()} == {"tables.json", "all_runs.csv", "mine.csv"}
