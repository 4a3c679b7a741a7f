"""`report`: which sweeps and runs it is of, where it goes, exit codes, and the job that writes one."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.checks.finding import Finding
from jobs.checks.node_checks import verdict_record
from jobs.cli import report
from jobs.core import journal
from jobs.schedulers.interface import SubmitError
from jobs.status.run_folders import annotate
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.jobs import FakeScheduler, FakeSlurm
from tests.support.states import make_run, on_slurm
from tests.support.verbs import RUNS, ask, ask_json, end

pytestmark = pytest.mark.usefixtures("cluster", "empty_pngs")
SLOW = Finding("warning", "links", "the link of node n2 moves 40 MB/s", "look")
OUTCOME = {"attempt": 0, "message": None, "ended": "2026-01-02T03:04:05Z", "retryable": True}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Iterator[list[tuple[str, str]]]:
    """Command lines and the beginnings of their errors: each is bad input, and writes no report."""
    cases: list[tuple[str, str]] = []
    yield cases
    assert cases
    for command, why in cases:
        assert submit.main(command.split()) == 2, command
        assert capsys.readouterr().err.startswith(f"error: {why}")
    assert not list(RUNS.glob("*/report*"))


def with_warning(sweep: Path, *names: str) -> None:
    for name in names:
        record = verdict_record(0, "full", ["n1", "n2"], [], {}, [SLOW])
        write_json(RunDir(sweep / name).attempt(0).preflight, record)


def with_targets(sweep: Path, **values: float) -> None:
    wanted = [{"metric": metric, "value": value} for metric, value in values.items()]
    write_json(sweep / "sweep.json", {"targets": wanted})


def test_the_report_is_of_the_sweep_that_was_submitted_last(capsys: pytest.CaptureFixture[str]) -> None:
    for when, sweep in enumerate(("b", "c", "a")):
        run = make_run(RUNS, f"{sweep}/n1")
        for path in (run.run_json, journal.entry(run, 0).path("intent")):
            os.utime(path, (when, when))
    assert report.newest_sweep(RUNS) == "a"
    first, again = (journal.entry(RunDir(RUNS / "c/n1"), number).path("intent") for number in (0, 1))
    again.write_bytes(first.read_bytes())
    os.utime(again, (9, 9))
    assert report.newest_sweep(RUNS) == "c", "submitted again, which leaves run.json as it was"
    assert ask(capsys, "report") == "report of c: runs/c/report/report.html\n"
    assert ask_json(capsys, "report b c --out both")["report"]["sweeps"] == ["b", "c"]
    assert Path("both/report.html").exists()


def test_runs_with_a_tag_have_a_report_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1,))
    annotate(sweep / "n1x1-r1", add=["good"])
    document = ask_json(capsys, "report --tag good")
    assert document["page"] == "runs/a/report-good/report.html"
    assert [point["runs"] for point in document["report"]["curves"][0]["points"]] == [["n1x1-r1"]]


def test_cancelled_runs_are_cancelled_in_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm("ended", message="its job was cancelled", cause="cancelled")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: slurm)
    for name in ("queued", "recorded", "stopped", "killed"):
        run = on_slurm(RUNS, f"a/{name}", claimed=name != "queued")
        if name == "queued":
            journal.revoke(run, 0, "cancelled", "cancelled before it started")
        else:
            run.attempt(0).path.mkdir(parents=True)
    for name, cause in (("recorded", "cancelled"), ("stopped", "stopped")):
        write_json(RunDir(RUNS / "a" / name).failed, OUTCOME | {"schema_version": 1, "cause": cause})
    excluded = {row["run"]: row for row in ask_json(capsys, "report a")["report"]["excluded_runs"]}
    assert {name: row["state"] for name, row in excluded.items()} == {
        "queued": "cancelled", "recorded": "cancelled", "stopped": "stopped", "killed": "cancelled",
    }  # fmt: skip
    assert excluded["killed"]["reason"].startswith("its job was cancelled; no metrics yet")
    assert excluded["queued"]["reason"].startswith("cancelled before it started; not started")


def test_bad_input_writes_nothing(refused: list[tuple[str, str]]) -> None:
    fake_sweep(RUNS, "a", nodes=(1,), repeats=1)
    fake_run(RUNS / "b" / "failed", end="failed")
    with_warning(fake_sweep(RUNS, "b", nodes=(1,), repeats=1), "n1x1-r0", "failed")
    Path("file").write_text("")
    left = (
        "--reject-warned: no run is left of 1 finished ones, such as b/n1x1-r0: rejected for its pre-flight"
    )
    refused += [
        ("report a --base 7", "base='7' names no"),
        ("report a --out file/here", "cannot write the report to"),
        ("report a b", "--out is needed for a report on several sweeps"),
        ("report --csv a", "--csv='a' is the name of a sweep, not a folder: report a --csv"),
        ("report --parquet a", "--parquet='a' is the name of a sweep"),
        ("report a --against bb", "no sweep 'bb'"),
        ("report a --against a", "--against a: a sweep cannot be compared with itself"),
        ("report a --check", "no targets in a"),
        ("report b --reject-warned", left),
        ("report a --against b --reject-warned", left),
    ]


def test_against_another_sweep_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of the other sweep, which may be in any folder, had a warning before it started."""
    fake_sweep(RUNS, "new", nodes=(1, 2), step_s=0.08)
    old = fake_sweep(Path("elsewhere"), "old", nodes=(1, 2), torch="2.12.0")
    with_warning(old, "n1x1-r0")
    printed = ask(capsys, "report new --against elsewhere/old --reject-warned")
    document = read_json(RUNS / "new" / "report" / "report.json")
    (section,) = [each for each in document["sections"] if each["id"] == "comparison"]
    assert section["conclusion"].startswith("new is faster than old at 1 rank and 2 ranks: 1.2")
    assert printed.splitlines()[0] == section["conclusion"] == document["answers"][0]["text"]
    assert any("torch is 2.13.0 in new and 2.12.0 in old" in text for text in section["paragraphs"])
    left_out = [each["runs"] for each in document["caveats"] if each["kind"] == "left out"]
    assert left_out == [["old/n1x1-r0"]]


def test_rejected_runs_are_in_no_figure_and_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1, 2))
    with_warning(sweep, "n2x1-r1")
    document = ask_json(capsys, "report a --reject-warned --csv")["report"]
    points = [each["runs"] for each in document["curves"][0]["points"]]
    assert points == [["n1x1-r0", "n1x1-r1", "n1x1-r2"], ["n2x1-r0", "n2x1-r2"]]
    (excluded,) = document["excluded_runs"]
    assert (excluded["run"], "n2 moves 40 MB/s" in excluded["reason"]) == ("n2x1-r1", True)
    with (sweep / "report" / "csv" / "all_runs.csv").open() as file:
        rejected = [row["run"] for row in csv.DictReader(file) if row["rejected"] == "True"]
    assert rejected == ["n2x1-r1"]
    with_targets(sweep, efficiency=0.7)
    assert ask(capsys, "report a --check").splitlines()[-1].startswith("met: efficiency")
    assert not ask_json(capsys, "report a --check")["report"]["excluded_runs"], "without the option it counts"


def test_check_prints_each_target_and_exits_with_the_worst_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_targets(fake_sweep(RUNS, "a", nodes=(1, 2)), efficiency=0.99, throughput=1.0)
    document = ask_json(capsys, "report a --check", code=1)
    assert [each["verdict"] for each in document["targets"]] == ["missed", "met"]
    assert document["error"]["exit_code"] == 1
    Path("tiny.yaml").write_text(f"{Path('tiny.yaml').read_text()}\ntargets: {{efficiency: 0.9, at: 2}}\n")
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert "cannot tell: efficiency at 2 ranks is unknown" in ask(capsys, "report tiny --check", code=3)


def test_a_report_job_is_submitted_except_without_a_report(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    assert "report" not in ask(capsys, "sweep tiny.yaml --nodes 1 --no-report")
    assert cluster.followed == []
    out = ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert "report: runs/tiny/report/report.html, by job later:1 when these runs have ended" in out
    assert cluster.followed == [("tiny", ["elsewhere:1", "elsewhere:2"])]
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert len(cluster.followed) == 1, "it is there"
    end(RunDir(RUNS / "tiny/n1"), "crashed")
    ask(capsys, "resume tiny")
    assert cluster.followed[1:] == [("tiny", ["elsewhere:3", "elsewhere:2"])]
    assert cluster.cancelled == ["later:1"]


def test_ctrl_c_during_wait_submits_the_report_job(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.cli.follow.follow", stop)
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1", "--wait"]) == 130
    assert cluster.followed == [("tiny", ["elsewhere:1"])]
    assert "by job later:1" in capsys.readouterr().err


def test_a_refused_report_job_is_no_failure(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> str:
        raise SubmitError("sbatch refused report-tiny: invalid account")

    monkeypatch.setattr(cluster, "submit_after", refuse)
    out = ask(capsys, "sweep tiny.yaml --nodes 1")
    assert "no job will write the report of tiny: sbatch refused report-tiny: invalid account" in out
