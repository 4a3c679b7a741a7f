"""Records, logs and locks that another user or a broken program left: verbs show them or refuse them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import submit
from analysis.read.lines import read_columns
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.cli.follow import live_table
from jobs.cli.terminal import console
from jobs.status.run_state import read_state
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m [bold]kept[/bold] \x08\x7f\x9b31m\u202e\ud800\x0b\x85\n"
CONTROLS = ("\x1b", "\x07", "\x08", "\x7f", "\x9b", "\u202e", "\ud800", "\x0b", "\x85")


def link(path: Path) -> None:
    secret = path.parent / "secret"
    secret.write_text('{"secret": "of another user"}\n')
    path.symlink_to(secret.absolute())


def oversized(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


REPLACEMENTS: list[Callable[[Path], None]] = [
    lambda path: path.symlink_to("/dev/zero"),
    link,
    os.mkfifo,
    oversized,
]


@pytest.fixture(params=REPLACEMENTS, ids=["device", "link", "fifo", "oversized"])
def replace(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        request.param(path)

    return put


def with_escapes(value: object) -> object:
    """The record with the escapes at the end of each text that is not an identifier or a time."""
    if isinstance(value, dict):
        kept = ("cause", "by", "state", "cluster", "time", "started", "ended", "created", "attempt")
        return {key: each if key in kept else with_escapes(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_escapes(each) for each in value]
    return value + ESCAPES if isinstance(value, str) else value


@pytest.fixture
def hostile() -> RunDir:
    run = make_run(RUNS, "tiny/n1", "failed")
    write_json(run.path / "annotation.json", {"tags": ["a"], "note": "note"})
    write_json(run.attempt(0).record, {"attempt": 0, "cause": "crashed", "message": "no", "nodes": ["host"]})
    run.attempt(0).rank_log(0).write_bytes(f"one{ESCAPES}".encode("utf-8", "surrogatepass"))
    for path in [*run.path.rglob("*.json"), run.failed]:
        write_json(path, with_escapes(read_json(path)))
    write_json(RUNS / "tiny/annotation.json", {"tags": ["b"], "note": f"note{ESCAPES}"})
    return run


@pytest.mark.parametrize("forced", ["", "1"], ids=["file", "colours"])
@pytest.mark.parametrize("command", ["status", "status tiny", "show n1", "logs n1", "watch tiny"])
def test_text_of_records_is_printed_without_control_characters(
    hostile: RunDir,
    command: str,
    forced: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", forced)
    monkeypatch.delenv("NO_COLOR", raising=False)
    submit.main(command.split())
    printed = "".join(capsys.readouterr())
    own_colours = printed.replace("\x1b[31m", "").replace("\x1b[0m", "") if forced else printed
    assert printed
    assert not [character for character in CONTROLS if character in own_colours]


def test_the_live_table_shows_markup_as_text(hostile: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    state = read_state(hostile)
    shown = console(sys.stdout)
    shown.width = 400
    shown.print(live_table([state], 20, notice=f"slow{ESCAPES}"))
    out = capsys.readouterr().out
    assert "[bold]kept[/bold]" in out
    assert not [character for character in CONTROLS if character in out]


def test_messages_of_errors_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert submit.main(["show", f"none{ESCAPES}"]) == 2
    assert not [character for character in CONTROLS if character in capsys.readouterr().err]


@pytest.mark.parametrize("name", ["run.json", "submissions/0000.intent.json", "FAILED"])
def test_a_record_that_is_no_file_is_an_unreadable_record(
    name: str, replace: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(RUNS, "tiny/good", "done")
    run = make_run(
        RUNS, "tiny/n1", "failed" if name == "FAILED" else "planned" if name == "run.json" else "queued"
    )
    replace(run.path / name)
    states = {each["run"]: each for each in ask_json(capsys, "status")["runs"]}
    assert states["good"]["state"] == "done"
    assert states["n1"]["state"] == "corrupt"
    assert str(run.path / name) in states["n1"]["message"]
    ask(capsys, "show n1")


@pytest.mark.parametrize("name", ["progress.json", "metrics.json", "annotation.json", "env.json"])
def test_a_record_beside_the_state_is_left_out(
    name: str, replace: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(RUNS, "tiny/n1", "done")
    replace(run.path / name)
    assert ask_json(capsys, "status")["runs"][0]["state"] == "done"
    assert "of another user" not in ask(capsys, "show n1")


@pytest.mark.parametrize("options", ["", " -f", " --all", " --all -f"])
def test_a_log_that_is_a_link_is_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_log_refused(link, options, capsys)


@pytest.mark.parametrize("put", REPLACEMENTS[:3], ids=["device", "link", "fifo"])
def test_a_log_that_is_no_file_is_refused(
    put: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_log_refused(put, "", capsys)


def assert_log_refused(put: Callable[[Path], None], options: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    run.attempt(0).path.mkdir(parents=True)
    put(run.attempt(0).rank_log(0))
    assert submit.main(f"logs n1{options}".split()) == 2
    out, err = capsys.readouterr()
    assert str(run.attempt(0).rank_log(0)) in err
    assert not out


@pytest.mark.parametrize("folder", ["submissions", "attempts", "attempts/000"])
def test_a_folder_of_a_run_that_is_a_link_is_not_followed(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    write_text(run.attempt(0).rank_log(0), "of another user\n")
    (run.path / folder).rename(tmp_path / "private")
    (run.path / folder).symlink_to(tmp_path / "private")
    (shown,) = ask_json(capsys, "status")["runs"]
    refused = f"{run.path / folder} is a symbolic link, not a folder"
    assert (shown["state"], shown["message"]) == ("corrupt", refused)
    for command in ("show n1", "logs n1", "logs n1 -f", "logs n1 --all"):
        assert submit.main(command.split()) == 2, command
        out, err = capsys.readouterr()
        assert (out, refused in err) == ("", True)


def test_sweeps_runs_and_checkpoints_may_be_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "elsewhere", "tiny/n1", "done")
    (run.path / "checkpoints").symlink_to(tmp_path)
    RUNS.mkdir()
    (RUNS / "tiny").symlink_to(tmp_path / "elsewhere/tiny")
    (RUNS / "other").mkdir()
    (RUNS / "other/n1").symlink_to(run.path)
    assert [each["state"] for each in ask_json(capsys, "status")["runs"]] == ["done", "done"]


def test_readers_of_the_report_leave_out_lines_that_are_no_file(
    replace: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "steps-00000.jsonl"
    replace(path)
    unreadable: list[str] = []
    assert read_columns(path, {"step_s": float}, unreadable)["step_s"].size == 0
    assert [str(path) in message for message in unreadable] == [True]


def test_a_lock_that_is_a_link_leaves_its_target_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "notes"
    target.write_text("of the user")
    RUNS.mkdir()
    (RUNS / ".excluded-nodes.lock").symlink_to(target)
    assert submit.main(["nodes", "--exclude", "a1", "--reason", "slow"]) == 2
    (RUNS / "tiny").mkdir()
    (RUNS / "tiny/.lock").symlink_to(target)
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local"]) == 2
    assert "symbolic link" in capsys.readouterr().err
    assert target.read_text() == "of the user"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_other_users_cannot_write_what_a_submission_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local"]) == 0, capsys.readouterr().err
    assert submit.main(["nodes", "--exclude", "a1", "--reason", "slow"]) == 0
    found = [RUNS, *RUNS.rglob("*")]
    assert any(path.name == ".excluded-nodes.lock" for path in found)
    assert any(".code" in path.parts for path in found)
    assert not [path for path in found if not path.is_symlink() and path.stat().st_mode & stat.S_IWOTH]
    assert RUNS.stat().st_mode & stat.S_IWGRP  # a group may share the folder, as its umask has it
