"""`report --against`: two known sweeps, from the command line to the page."""

from __future__ import annotations

import pytest

import submit
from disttrain.records.json_files import read_json
from tests.support.fake_runs import fake_sweep
from tests.support.verbs import RUNS, ask

pytestmark = pytest.mark.usefixtures("cluster", "empty_pngs")


def test_report_against_another_sweep_has_verdicts_and_differences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_sweep(RUNS, "new", nodes=(1, 2), step_s=0.08)
    fake_sweep(RUNS, "old", nodes=(1, 2), step_s=0.1, torch="2.12.0")
    printed = ask(capsys, "report new --against old", code=0)
    report = read_json(RUNS / "new" / "report" / "report.json")
    section = next(each for each in report["sections"] if each["id"] == "comparison")
    assert section["conclusion"].startswith("new is faster than old at 1 rank and 2 ranks: 1.2")
    assert printed.splitlines()[0] == section["conclusion"]
    first = report["answers"][0]
    assert (first["question"], first["text"]) == ("Which sweep is faster?", section["conclusion"])
    text = (RUNS / "new" / "report" / "report.html").read_text()
    assert "torch is 2.13.0 in new and 2.12.0 in old" in text
    ask(capsys, "report new --against runs/old", code=0)


def test_an_unknown_sweep_and_the_sweep_itself_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    fake_sweep(RUNS, "new", nodes=(1,))
    for name, why in (("nwe", "no sweep 'nwe'"), ("new", "--against new: a sweep cannot be compared with")):
        assert submit.main(["report", "new", "--against", name]) == 2
        assert why in capsys.readouterr().err
    assert not (RUNS / "new" / "report").exists()
