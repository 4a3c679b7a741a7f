"""Tags and notes of sweeps and runs, and the filters by tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import AnnotationRecord
from jobs.status.run_folders import ANNOTATION, Annotation, annotate, read_annotation
from jobs.status.run_state import read_state
from tests.support.fake_runs import fake_sweep, table_rows
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json, refused

pytestmark = pytest.mark.usefixtures("cluster")


def names(document: dict[str, Any]) -> list[str]:
    return [run["run"] for run in document["runs"]]


def test_an_annotation_is_changed_step_by_step(tmp_path: Path) -> None:
    assert annotate(tmp_path) == read_annotation(tmp_path) == Annotation()
    assert not (tmp_path / ANNOTATION).exists(), "nothing has changed"
    annotate(tmp_path, add=["b", "a"], note=" two\nlines ")
    assert annotate(tmp_path, add=["a", "c"], remove=["b"]) == Annotation(("a", "c"), "two lines")
    assert AnnotationRecord.model_validate(read_json(tmp_path / ANNOTATION)).tags == ["a", "c"]
    assert annotate(tmp_path, note="") == Annotation(("a", "c"), None)
    for damage in ("{", "[]", '{"tags": 7, "note": []}'):
        (tmp_path / ANNOTATION).write_text(damage)
        assert read_annotation(tmp_path) == Annotation()


def test_tags_and_notes_of_a_submission_change_no_key(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --tag a --dry-run")
    assert "--tag: 'a b' cannot be a tag" in refused(capsys, "sweep tiny.yaml --tag 'a b'")
    assert not RUNS.exists()
    ask(capsys, "sweep tiny.yaml --nodes 1")
    (before,) = ask_json(capsys, "status")["runs"]
    ask(capsys, "sweep tiny.yaml --nodes 1 --tag a b --note 'a first look'")
    ask(capsys, "run tiny.yaml --nodes 2 --tag mine --note 'two nodes'")
    assert len(cluster.submitted) == 2, "a run that is there is not submitted for its tags"
    first, second = ask_json(capsys, "status")["runs"]
    assert (first["tags"], first["note"], first["sweep_note"]) == (["a", "b"], None, "a first look")
    assert (second["tags"], second["note"]) == (["a", "b", "mine"], "two nodes")
    assert first["config_key"] == before["config_key"]
    for command in ("status", f"show {second['run']}"):
        out = ask(capsys, command)
        assert all(text in out for text in ("mine", "two nodes", "a first look")), out


def test_annotate_prints_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/a")
    assert ask(capsys, "annotate tiny a") == "tiny: no tags; no note\na: no tags; no note\n"
    out = ask(capsys, "annotate tiny/a --tag good paper --note baseline")
    assert out == 'tiny/a: good, paper; "baseline"\n'
    ask(capsys, "annotate tiny --tag s")
    assert read_state(run).tags == ["good", "paper", "s"]
    found = ask_json(capsys, "annotate a tiny --untag paper")
    of_run, of_sweep = found["annotations"]
    assert of_run == {"target": "a", "tags": ["good"], "note": "baseline"}
    assert of_sweep == {"target": "tiny", "tags": ["s"], "note": None}
    assert [(each["run"], each["tags"]) for each in found["runs"]] == [("a", ["good", "s"])]
    assert refused(capsys, "annotate a --untag god").endswith("'god'; did you mean 'good'?\n")
    assert "no run or sweep 'b' in runs" in refused(capsys, "annotate b --tag x")


def test_a_tag_selects_runs_for_each_verb(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    for name in ("x/a", "x/b", "y/a"):
        make_run(RUNS, name, "failed")
    ask(capsys, "annotate x/a y --tag good")
    ask(capsys, "annotate x/a --tag best")
    for words, found in (
        ("status --tag good", ["a", "a"]),
        ("status x --tag good", ["a"]),
        ("status --tag good --tag best", ["a"]),
        ("watch x --tag good", ["a"]),
        ("clean --tag best --dry-run", ["a"]),
        ("clean x --tag good --stale --dry-run", []),
        ("resume --tag good --no-report", ["a", "a"]),
    ):
        assert names(ask_json(capsys, words)) == found, words
    assert cluster.submitted == [("a", 1), ("a", 1)]
    assert ask(capsys, "status --tag best").splitlines()[1].split()[:2] == ["x", "0/2"], "of all its runs"
    for verb in ("status", "watch", "resume", "report", "clean"):
        assert refused(capsys, f"{verb} --tag goood").endswith("'goood'; did you mean 'good'?\n")


def test_tags_move_to_the_trash_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "x/a")
    write_json(RUNS / "x" / "sweep.json", {"base": {}})
    ask(capsys, "annotate x x/a --tag good")
    ask(capsys, "clean x")
    assert not (RUNS / "x" / ANNOTATION).exists()
    ask(capsys, "clean --restore")
    assert (read_state(run).own_tags, read_state(run).sweep_tags) == (("good",), ("good",))


@pytest.mark.usefixtures("empty_pngs")
def test_a_report_on_a_tag_has_its_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for run in sorted(fake_sweep(RUNS, "x", nodes=(1, 2), repeats=2).glob("n*")):
        if run.name.endswith("r0"):
            annotate(run, add=["quiet"], note="at night")
    found = ask_json(capsys, "report --tag quiet")["report"]
    assert [run["run"][-2:] for run in table_rows(found, "runs")] == ["r0", "r0"]
    values = {row["property"]: row["value"] for row in table_rows(found, "provenance")}
    assert (values["Tags"], values["Note"]) == ("quiet", "at night")
    assert (RUNS / "x" / "report-quiet" / "report.html").exists()
    assert not (RUNS / "x" / "report").exists()
