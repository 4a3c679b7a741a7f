"""The hook at the end of a sweep: by the report job, and after `--wait`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.report import Written
from disttrain.config.config_tree import Config
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, report
from jobs.core import hook
from jobs.status.run_state import read_runs
from tests.support.jobs import FakeScheduler
from tests.support.states import CONFIG, make_run
from tests.support.verbs import RUNS, ask, end, refused

pytestmark = pytest.mark.usefixtures("cluster")


def with_hook(command: str) -> Config:
    return CONFIG.model_copy(update={"job": CONFIG.job.model_copy(update={"on_end": command})})


def calls(sweep: str) -> dict[str, dict[str, Any]]:
    return {path.stem: read_json(path) for path in hook.records_of(RUNS / sweep).glob("*.json")}


def write_page(monkeypatch: pytest.MonkeyPatch, page: Path | None) -> None:
    """Replace the report by a page, or by an error."""

    def write(*_: object, **__: object) -> Written:
        if page is None:
            raise ValueError("no report")
        return Written(page, [])

    monkeypatch.setattr(report, "write", write)


@pytest.mark.parametrize("written", [True, False], ids=["report", "no report"])
def test_the_report_job_calls_the_hook_and_fails_with_its_runs(
    written: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = RUNS / "a/report/report.html" if written else None
    write_page(monkeypatch, page)
    for state in ("done", "failed", "cancelled"):
        make_run(RUNS, f"a/{state}", state, config=with_hook("true"))
    assert ask(capsys, "report a --sweep-end 3", code=1).splitlines()[-1] == "1 run failed: failed"
    ((name, called),) = calls("a").items()
    assert (name, called["event"], called["exit_code"]) == ("sweep_end-job-0003", "sweep_end", 0)
    assert called["states"] == {"done": 1, "failed": 1, "cancelled": 1}
    assert called["failed"] == [{"run": "failed", "cause": "crashed", "message": "rank 1: ValueError: no"}]
    assert called["report"] == (str(page.absolute()) if page else None)


def test_a_report_job_fails_without_a_report_and_not_with_its_hook(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = RUNS / "a/report/report.html"
    for state in ("done", "cancelled"):
        make_run(RUNS, f"a/{state}", state)
    for written, code in ((page, 0), (None, 1)):
        write_page(monkeypatch, written)
        ask(capsys, "report a --sweep-end 0", code=code)
    assert calls("a") == {}, "these runs have no hook"
    write_page(monkeypatch, page)
    make_run(RUNS, "a/newest", config=with_hook("exit 4"))
    assert "job.on_end failed with exit code 4: " in refused(capsys, "report a --sweep-end 0", code=0)
    ask(capsys, "report a")
    assert len(calls("a")) == 1, "a report by hand calls no hook"


WAIT = "sweep tiny.yaml --nodes 1 --wait --on-end 'echo a,b'"


def ends_while_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the run `n1` finish when the command waits for it."""

    def ends(*_: object, **__: object) -> list[Any]:
        end(RunDir(RUNS / "tiny/n1"), "finished")
        return [state for state in read_runs(RUNS, "tiny") if state.name == "n1"]

    monkeypatch.setattr(follow, "follow", ends)


def test_the_hook_is_called_after_wait_if_something_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_while_followed(monkeypatch)
    ask(capsys, WAIT)
    ((name, called),) = calls("tiny").items()
    assert (name, called["states"], called["output"]) == ("sweep_end-wait-0000", {"done": 1}, "a,b\n")
    monkeypatch.setattr(follow, "follow", lambda *_, **__: read_runs(RUNS, "tiny"))
    ask(capsys, WAIT)
    assert len(calls("tiny")) == 1, "the run is up to date"


@pytest.mark.parametrize("before", ["--nodes 2 --no-report", "--nodes 1"], ids=["active runs", "report job"])
def test_the_hook_is_not_called_after_wait_while_runs_go_on_or_a_report_job_calls_it(
    before: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(capsys, f"sweep tiny.yaml --on-end true {before}")
    ends_while_followed(monkeypatch)
    ask(capsys, WAIT)
    assert calls("tiny") == {}


@pytest.mark.parametrize(("flag", "reports"), [("", 1), (" --no-report", 0)])
def test_an_interrupted_wait_leaves_the_report_to_a_job(
    flag: str,
    reports: int,
    capsys: pytest.CaptureFixture[str],
    cluster: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "follow", interrupt)
    ask(capsys, f"{WAIT}{flag}", code=130)
    assert len(cluster.followed) == reports


def test_the_report_job_names_its_submission(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def follow_up(job: object, command: list[str], *_: object) -> str:
        commands.append(command[1:])
        return "later"

    monkeypatch.setattr(cluster, "submit_after", follow_up)
    ask(capsys, "sweep tiny.yaml --nodes 1")
    assert commands == [["report", "tiny", "--runs", str(RUNS.absolute()), "--sweep-end", "0"]]


def test_a_flag_for_the_hook_is_no_part_of_a_runs_name(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run tiny.yaml --on-end true --no-report")
    (run,) = (RUNS / "tiny").glob("n*")
    assert (run.name, read_json(run / "run.json")["config"]["job"]["on_end"]) == ("n1", "true")
