"""`report --check`: output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import WHEN, fake_sweep
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster", "empty_pngs")


def write_targets(sweep: Path, **values: float) -> None:
    wanted = [{"metric": metric, "value": value} for metric, value in values.items()]
    write_json(sweep / "sweep.json", {"name": "a", "base": {}, "created": WHEN, "targets": wanted})


def test_exit_codes_of_met_missed_and_unsettled_targets(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1, 2))
    write_targets(sweep, efficiency=0.7)
    out = ask(capsys, "report a --check", code=0)
    assert "met: efficiency at 2 ranks is 0.8" in out
    assert (sweep / "report" / "report.html").exists()
    write_targets(sweep, efficiency=0.85)
    assert "cannot tell: efficiency" in ask(capsys, "report a --check", code=3)
    write_targets(sweep, efficiency=0.99, throughput=1.0)
    document = ask_json(capsys, "report a --check", code=1)
    assert [each["verdict"] for each in document["targets"]] == ["missed", "met"]
    assert document["error"]["exit_code"] == 1


def test_check_without_targets_is_bad_input_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = fake_sweep(RUNS, "a", nodes=(1,))
    assert submit.main(["report", "a", "--check"]) == 2
    assert "no targets in a" in capsys.readouterr().err
    assert not (sweep / "report").exists()


def test_targets_of_the_file_reach_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("tiny.yaml").read_text()
    Path("tiny.yaml").write_text(text + "\ntargets: {efficiency: 0.9, at: 2}\n")
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert read_json(RUNS / "tiny" / "sweep.json")["targets"][0]["at"] == 2
    assert "cannot tell: efficiency at 2 ranks is unknown" in ask(capsys, "report tiny --check", code=3)
