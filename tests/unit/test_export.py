"""`report --csv` and `--parquet`: the tables behind the page, as raw numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import submit
from analysis.read.frames import load
from analysis.read.load import load_runs
from analysis.report.export import column_name, write_tables
from analysis.report.section import Column, Section, Table
from analysis.report.sections import build_all
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from analysis.units import Unit
from disttrain.records.json_files import read_json
from tests.support.fake_runs import fake_sweep

READERS = {"csv": pd.read_csv, "parquet": pd.read_parquet}


@pytest.mark.usefixtures("empty_pngs")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_each_table_of_the_page_is_a_file_with_its_numbers(tmp_path: Path, kind: str) -> None:
    sweep = fake_sweep(tmp_path / "runs", nodes=(1, 2), repeats=2)
    folder = tmp_path / "tables"
    assert submit.main(["report", "--runs", str(tmp_path / "runs"), f"--{kind}", str(folder)]) == 0
    index = read_json(folder / "tables.json")
    files = {each["file"] for each in index["tables"]}
    assert files == {path.name for path in folder.iterdir()} - {"tables.json"}
    assert {f"scaling.{kind}", f"composition.{kind}", f"runs.{kind}", f"all_runs.{kind}"} <= files
    runs = load([sweep])
    read = READERS[kind](folder / f"runs.{kind}")
    assert read["samples_per_s"].tolist() == pytest.approx(runs["samples_per_s"].tolist(), rel=1e-15)
    assert read["run_path"].tolist() == runs["path"].tolist()
    everything = READERS[kind](folder / f"all_runs.{kind}")
    assert list(everything) == list(runs)
    scaling = READERS[kind](folder / f"scaling.{kind}")
    assert (scaling["step_s_low"] < scaling["step_s"]).all()
    assert (scaling["step_s_high"] > scaling["step_s"]).all()
    assert scaling["step_s_repeats"].tolist() == [2, 2]


def test_every_table_and_every_figure_of_the_page_has_a_file_with_its_numbers(tmp_path: Path) -> None:
    study = make_study(load_runs([fake_sweep(tmp_path / "runs", nodes=(1, 2), repeats=2, all_ranks=True)]))
    sections = build_all(study)
    write_tables(study, sections, tmp_path / "csv", "csv")
    index = read_json(tmp_path / "csv" / "tables.json")["tables"]
    files = {each["file"].removesuffix(".csv") for each in index}
    assert {table.name for section in sections for table in section.tables} <= files
    shown = [name for each in index for name in each["figures"]]
    assert sorted(shown) == sorted(figure.name for section in sections for figure in section.figures)
    frames = {name: pd.read_csv(tmp_path / "csv" / f"{name}.csv") for name in files}
    assert all(len(frame) for frame in frames.values())
    steps = frames["step_times"].groupby("run")["step_s"]
    assert steps.size().tolist() == [100] * 4
    by_run = {run.name: run.step_durations_s for run in study.runs}
    assert all(series.tolist() == pytest.approx(by_run[run]) for run, series in steps)
    curves = {"training": "loss_history", "gradient_norm": "grad_norm_history"}
    for figure, column in (("training", "loss"), ("gradient_norm", "grad_norm")):
        recorded = [getattr(each, column) for run in study.runs for each in run.curves[curves[figure]]]
        assert set(recorded) <= set(frames[f"{figure}_by_step"][column])
    assert set(frames["utilization_by_step"]["run"]) == {run.name for run in study.included}
    assert set(frames["lateness"]["rank"]) == {0, 1}


def test_estimates_runs_and_units_are_columns_of_one_type(tmp_path: Path) -> None:
    study = Study(load_runs([fake_sweep(tmp_path, nodes=(1,), repeats=2, emulated=True)]), [], {})
    columns = [
        Column("run", "run"),
        Column("throughput", "throughput", "samples/s"),
        Column("peak", "peak", "B"),
        Column("ok", "ok"),
        Column("bound", "bound"),
    ]
    rows = [
        [study.runs[0], Estimate(2.5, 2.0, 3.0, 4), 2**40, True, "none"],
        [study.runs[1], None, None, False, 0.5],
    ]
    section = Section("s", "S", "", tables=[Table("t", "Caption.", columns, rows)])
    for kind, reader in READERS.items():
        write_tables(study, [section], tmp_path / kind, kind)
        frame = reader(tmp_path / kind / f"t.{kind}")
        assert list(frame) == [
            "run", "run_path",
            "throughput_samples_per_s", "throughput_samples_per_s_low", "throughput_samples_per_s_high",
            "throughput_samples_per_s_repeats", "throughput_samples_per_s_basis",
            "peak_bytes", "ok", "bound", "emulated",
        ]  # fmt: skip
        first, second = frame.to_dict("records")
        assert (first["run"], first["run_path"]) == ("n1x1-r0", study.runs[0].path)
        assert first["peak_bytes"] == 2**40
        assert (first["throughput_samples_per_s"], first["throughput_samples_per_s_high"]) == (2.5, 3.0)
        assert pd.isna(second["throughput_samples_per_s"])
        assert pd.isna(second["peak_bytes"])
        assert frame["ok"].tolist() == [True, False]
        assert frame["bound"].astype(str).tolist() == ["none", "0.5"]
        assert frame["emulated"].all()


def test_files_of_an_earlier_report_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    study = Study(load_runs([fake_sweep(tmp_path, nodes=(1,), repeats=1)]), [], {})
    section = Section("s", "S", "", tables=[Table("old", "", [Column("n", "n", "count")], [[1]])])
    folder = tmp_path / "tables"
    write_tables(study, [section], folder, "csv")
    (folder / "mine.csv").write_text("1")
    write_tables(study, [], folder, "csv")
    assert {path.name for path in folder.iterdir()} == {"tables.json", "all_runs.csv", "mine.csv"}


@pytest.mark.usefixtures("empty_pngs")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_sweep(tmp_path / "runs", nodes=(1,), repeats=1)
    (tmp_path / "file").write_text("")
    assert submit.main(["report", "--runs", str(tmp_path / "runs"), "--csv", str(tmp_path / "file")]) == 2
    assert f"error: --csv: cannot write '{tmp_path / 'file'}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [
        ("step_s", "s", "step_s"),
        ("whole", "span", "whole_s"),
        ("peak", "B", "peak_bytes"),
        ("share", "share", "share"),
    ],
)
def test_a_column_name_ends_in_its_unit(name: str, unit: Unit, expected: str) -> None:
    assert column_name(Column(name, "", unit)) == expected
