"""`report`, and the job that writes one after a sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, report
from jobs.core import journal
from jobs.schedulers.interface import SubmitError
from tests.support.jobs import FakeScheduler, FakeSlurm
from tests.support.states import make_run, on_slurm
from tests.support.verbs import RUNS, ask, ask_json, end

pytestmark = pytest.mark.usefixtures("cluster", "empty_pngs")
OUTCOME = {
    "schema_version": 1,
    "attempt": 0,
    "message": None,
    "ended": "2026-01-02T03:04:05Z",
    "retryable": True,
}


def test_the_report_is_of_the_newest_sweep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from analysis.report import Written

    asked: list[tuple[list[Path], Path, str | None]] = []

    def write(sweeps: list[Path], out: Path, *, base: str | None = None, **_: object) -> Written:
        asked.append((sweeps, out, base))
        write_json(out / "report.json", {"title": "t"})
        return Written(out / "report.html", [])

    monkeypatch.setattr("analysis.report.write", write)
    for when, sweep in enumerate(("b", "c", "a")):
        run = make_run(RUNS, f"{sweep}/n1")
        for path in (run.run_json, journal.entry(run, 0).path("intent")):
            os.utime(path, (when, when))
    assert report.newest_sweep(RUNS) == "a"
    again = journal.entry(RunDir(RUNS / "c/n1"), 0).path("intent")
    os.utime(again, (9, 9))
    assert report.newest_sweep(RUNS) == "c", "submitted again, which leaves run.json as it was"
    os.utime(again, (1, 1))
    assert ask(capsys, "report") == "report of a: runs/a/report/report.html\n"
    assert ask_json(capsys, "report b c --out both --base n1")["report"] == {"title": "t"}
    assert asked == [([RUNS / "a"], RUNS / "a/report", None), ([RUNS / "b", RUNS / "c"], Path("both"), "n1")]


def test_cancelled_runs_are_cancelled_in_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm("ended", message="its job was cancelled", cause="cancelled")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: slurm)
    end_of = {
        "queued": lambda run: journal.revoke(run, 0, "cancelled", "cancelled before it started"),
        "recorded": lambda run: write_json(run.failed, OUTCOME | {"cause": "cancelled"}),
        "stopped": lambda run: write_json(run.failed, OUTCOME | {"cause": "stopped"}),
        "killed": lambda run: None,
    }
    for name, act in end_of.items():
        act(on_slurm(RUNS, f"a/{name}", claimed=name != "queued"))
        if name != "queued":
            RunDir(RUNS / "a" / name).attempt(0).path.mkdir(parents=True)
    excluded = {row["run"]: row for row in ask_json(capsys, "report a")["report"]["excluded_runs"]}
    states = {name: row["state"] for name, row in excluded.items()}
    assert states == {
        "queued": "cancelled", "recorded": "cancelled", "stopped": "stopped", "killed": "cancelled",
    }  # fmt: skip
    assert excluded["killed"]["reason"].startswith("its job was cancelled; no metrics yet")
    assert excluded["queued"]["reason"].startswith("cancelled before it started; not started")


def test_a_report_with_a_bad_argument_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "a/n1")
    Path("file").write_text("")
    for flags, why in (("--base 7", "base='7' names no"), ("--out file/here", "cannot write the report to")):
        assert submit.main(["report", *flags.split()]) == 2
        assert capsys.readouterr().err.startswith(f"error: {why}")
    assert not (RUNS / "a/report").exists()


@pytest.mark.parametrize("flag", ["csv", "parquet"])
def test_a_sweep_given_as_the_folder_of_tables_is_refused(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    make_run(RUNS, "a/n1")
    make_run(RUNS, "b/n1")
    assert submit.main(["report", f"--{flag}", "a"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --{flag}='a' is the name of a sweep, not a folder: report a --{flag}")
    assert error.count("\n") == 1
    assert not Path("a").exists()
    assert not (RUNS / "b/report").exists()


def test_a_report_job_is_submitted_except_with_wait_or_no_report(
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

    monkeypatch.setattr(follow, "follow", stop)
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
