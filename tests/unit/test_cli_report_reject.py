"""`report --reject-warned`: runs on nodes with warnings are in no figure, and are listed with the reason."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import submit
from analysis.read.frames import load_frames
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.checks.finding import Finding
from jobs.checks.node_checks import verdict_record
from tests.support.fake_runs import fake_sweep
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")

SLOW = Finding("warning", "links", "the link of node n2 moves 40 MB/s", "look")


def with_warning(sweep: Path, *names: str) -> None:
    for name in names:
        record = verdict_record(0, "full", ["n1", "n2"], [], {}, [SLOW])
        write_json(RunDir(sweep / name).attempt(0).preflight, record)


def test_rejected_runs_are_in_no_figure_and_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1, 2))
    with_warning(sweep, "n2x1-r1")
    assert not ask_json(capsys, "report a")["report"]["excluded_runs"], "without the option, the run counts"
    report = ask_json(capsys, "report a --reject-warned --csv")["report"]
    assert [each["runs"] for each in report["curves"][0]["points"]] == [
        ["n1x1-r0", "n1x1-r1", "n1x1-r2"],
        ["n2x1-r0", "n2x1-r2"],
    ]
    reason = "rejected for its pre-flight: the link of node n2 moves 40 MB/s"
    assert [(each["run"], each["reason"]) for each in report["excluded_runs"]] == [("n2x1-r1", reason)]
    (caveat,) = [each for each in report["caveats"] if each["kind"] == "left out"]
    assert (caveat["gravity"], caveat["runs"]) == ("warning", ["a/n2x1-r1"])
    assert reason in caveat["text"]
    with (sweep / "report" / "csv" / "all_runs.csv").open() as file:
        rejected = {row["run"]: row["rejected"] for row in csv.DictReader(file)}
    assert {run for run, value in rejected.items() if value == "True"} == {"n2x1-r1"}
    assert reason in (sweep / "report" / "csv" / "runs.csv").read_text()
    runs = load_frames([sweep], reject_warned=True).runs
    assert runs[~runs["included"]]["run"].tolist() == ["n2x1-r1"]


def test_runs_of_the_other_sweep_are_rejected_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    fake_sweep(RUNS, "new", nodes=(1,))
    with_warning(fake_sweep(RUNS, "old", nodes=(1,)), "n1x1-r0")
    ask(capsys, "report new --against old --reject-warned")
    found = read_json(RUNS / "new" / "report" / "report.json")["caveats"]
    assert [each["runs"] for each in found if each["kind"] == "left out"] == [["old/n1x1-r0"]]


def test_a_report_without_any_run_left_is_refused_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep, other = fake_sweep(RUNS, "a", nodes=(1,)), fake_sweep(RUNS, "b", nodes=(1,))
    with_warning(sweep, "n1x1-r0", "n1x1-r1", "n1x1-r2")
    for names in ("a", "b --against a"):
        assert submit.main(["report", *names.split(), "--reject-warned"]) == 2
        assert capsys.readouterr().err == (
            "error: --reject-warned: no run is left of 3 finished ones, such as a/n1x1-r0: "
            "rejected for its pre-flight: the link of node n2 moves 40 MB/s\n"
        )
    assert not (sweep / "report").exists()
    assert not (other / "report").exists()


def test_targets_are_checked_without_rejected_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1, 2))
    write_json(sweep / "sweep.json", {"name": "a", "targets": [{"metric": "efficiency", "value": 0.7}]})
    with_warning(sweep, "n2x1-r0", "n2x1-r1")
    assert "met: efficiency" in ask(capsys, "report a --check", code=0)
    assert "one repeat" in ask(capsys, "report a --check --reject-warned", code=3)
