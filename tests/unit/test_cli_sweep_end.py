"""The hook at the end of a sweep: by the report job, and after `--wait`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import submit
from analysis.report import Written
from disttrain.config.config_tree import Config
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, report
from jobs.core import hook, journal
from jobs.status.run_state import read_runs
from tests.support.jobs import FakeScheduler
from tests.support.states import CONFIG, make_run
from tests.support.verbs import RUNS, ask, end

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
    out = ask(capsys, "report a --sweep-end 3", code=1)
    (record,) = calls("a").items()
    name, called = record
    assert (name, called["event"], called["exit_code"]) == ("sweep_end-job-0003", "sweep_end", 0)
    assert called["states"] == {"done": 1, "failed": 1, "cancelled": 1}
    assert called["failed"] == [{"run": "failed", "cause": "crashed", "message": "rank 1: ValueError: no"}]
    assert called["report"] == (str(page.absolute()) if page else None)
    assert out.splitlines()[-1] == "1 run failed: failed"


def test_a_report_job_without_failed_runs_succeeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in ("done", "cancelled"):
        make_run(RUNS, f"a/{state}", state)
    write_page(monkeypatch, RUNS / "a/report/report.html")
    ask(capsys, "report a --sweep-end 0")
    assert calls("a") == {}, "these runs have no hook"
    write_page(monkeypatch, None)
    ask(capsys, "report a --sweep-end 0", code=1)


def test_a_report_by_hand_calls_no_hook(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_page(monkeypatch, RUNS / "a/report/report.html")
    make_run(RUNS, "a/n1", "failed", config=with_hook("true"))
    ask(capsys, "report a")
    assert calls("a") == {}


def test_a_hook_that_fails_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_page(monkeypatch, RUNS / "a/report/report.html")
    make_run(RUNS, "a/n1", config=with_hook("exit 4"))
    assert submit.main(["report", "a", "--sweep-end", "0"]) == 0
    assert "warning: job.on_end failed with exit code 4: " in capsys.readouterr().err


def ends_while_followed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def ends(*_: object, **__: object) -> list[Any]:
        for name in names:
            end(RunDir(RUNS / "tiny" / name), "finished")
        return [state for state in read_runs(RUNS, "tiny") if state.name in names]

    monkeypatch.setattr(follow, "follow", ends)


def test_the_hook_is_called_after_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_while_followed(monkeypatch, "n1")
    command = ["sweep", "tiny.yaml", "--nodes", "1", "--wait", "--on-end", "echo a,b"]
    assert submit.main(command) == 0
    called = calls("tiny")
    assert [(name, each["states"]) for name, each in called.items()] == [("sweep_end-wait-0000", {"done": 1})]
    assert called["sweep_end-wait-0000"]["output"] == "a,b\n"
    monkeypatch.setattr(follow, "follow", lambda *_, **__: read_runs(RUNS, "tiny"))
    assert submit.main(command) == 0, "the run is up to date: nothing has ended"
    assert len(calls("tiny")) == 1


def test_the_hook_is_not_called_after_wait_while_other_runs_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 2 --on-end true --no-report")
    ends_while_followed(monkeypatch, "n1")
    ask(capsys, "sweep tiny.yaml --nodes 1 --on-end true --wait")
    assert calls("tiny") == {}


def test_the_hook_is_not_called_after_wait_if_a_report_job_will_call_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --on-end true")
    ends_while_followed(monkeypatch, "n1")
    ask(capsys, "sweep tiny.yaml --nodes 1 --on-end true --wait")
    assert calls("tiny") == {}


def test_the_report_job_names_its_submission(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def follow_up(job: object, command: list[str], *_: object) -> str:
        commands.append(command[1:])
        return f"later:{len(commands)}"

    monkeypatch.setattr(cluster, "submit_after", follow_up)
    ask(capsys, "sweep tiny.yaml --nodes 1")
    assert commands == [["report", "tiny", "--runs", str(RUNS.absolute()), "--sweep-end", "0"]]


def test_a_flag_for_the_hook_is_no_part_of_a_runs_name(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run tiny.yaml --on-end true --no-report")
    (run,) = (RUNS / "tiny").glob("n*")
    assert run.name == "n1"
    assert read_json(run / "run.json")["config"]["job"]["on_end"] == "true"
    assert journal.next_submission(RunDir(run)) == 1
