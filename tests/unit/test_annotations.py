"""Tags and notes of sweeps and runs, and the filters by tag."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import AnnotationRecord
from disttrain.records.run_directory import RunDir
from jobs.status.run_folders import ANNOTATION, Annotation, annotate, read_annotation
from jobs.status.run_state import read_state
from tests.support.fake_runs import fake_sweep, table_rows
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert submit.main([*words]) == 2
    return capsys.readouterr().err


def names(document: dict[str, list[dict[str, str]]]) -> list[str]:
    return [run["run"] for run in document["runs"]]


def test_an_annotation_is_changed_step_by_step(tmp_path: Path) -> None:
    assert read_annotation(tmp_path) == Annotation()
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
    ask(capsys, "sweep tiny.yaml --nodes 1")
    before = ask_json(capsys, "status")["runs"][0]
    assert (
        submit.main(["sweep", "tiny.yaml", "--nodes", "1", "--tag", "a", "b", "--note", "a first look"]) == 0
    )
    assert submit.main(["run", "tiny.yaml", "--nodes", "2", "--tag", "mine", "--note", "two nodes"]) == 0
    assert len(cluster.submitted) == 2, "a sweep that is there is not submitted for its tags"
    capsys.readouterr()
    first, second = ask_json(capsys, "status")["runs"]
    assert (first["tags"], first["note"], first["sweep_note"]) == (["a", "b"], None, "a first look")
    assert (second["tags"], second["note"]) == (["a", "b", "mine"], "two nodes")
    assert first["config_key"] == before["config_key"]
    out = ask(capsys, "status")
    assert ' a b   "a first look"\n' in out
    assert out.rstrip().splitlines()[-3].endswith('  mine  "two nodes"')
    out = ask(capsys, f"show {second['run']}")
    for line in ("tags          a, b, mine", "note          two nodes", "sweep's note  a first look"):
        assert line in out, out


def test_a_dry_run_writes_no_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --tag a --dry-run")
    assert not RUNS.exists()
    assert "--tag: 'a b' cannot be a tag" in refused(capsys, "sweep", "tiny.yaml", "--tag", "a b")
    assert not RUNS.exists()


def test_annotate_prints_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/a")
    assert ask(capsys, "annotate tiny a") == "tiny: no tags; no note\na: no tags; no note\n"
    out = ask(capsys, "annotate tiny/a --tag good paper --note baseline")
    assert out == 'tiny/a: good, paper; "baseline"\n'
    assert ask(capsys, "annotate tiny --tag s") == "tiny: s; no note\n"
    assert read_state(run).tags == ["good", "paper", "s"]
    found = ask_json(capsys, "annotate a --untag paper")
    assert found["annotations"] == [{"target": "a", "tags": ["good"], "note": "baseline"}]
    assert [(each["run"], each["tags"]) for each in found["runs"]] == [("a", ["good", "s"])]
    assert names(ask_json(capsys, "annotate tiny a")) == ["a"]
    assert refused(capsys, "annotate", "a", "--untag", "god").endswith("'god'; did you mean 'good'?\n")
    assert "no run 'b' in runs" in refused(capsys, "annotate", "b", "--tag", "x")


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
        assert refused(capsys, verb, "--tag", "goood").endswith("'goood'; did you mean 'good'?\n")
    assert "goes with none of" in refused(capsys, "clean", "--restore", "--tag", "good")


def test_tags_move_to_the_trash_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "x/a")
    write_json(RUNS / "x" / "sweep.json", {"base": {}})
    ask(capsys, "annotate x x/a --tag good")
    ask(capsys, "clean x")
    assert not (RUNS / "x" / ANNOTATION).exists()
    ask(capsys, "clean --restore")
    state = read_state(RunDir(RUNS / "x/a"))
    assert (state.own_tags, state.sweep_tags) == (("good",), ("good",))


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
