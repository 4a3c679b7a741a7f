"""Records, logs and locks that another user or a broken program left: verbs show them or refuse them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
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
from tests.support.verbs import RUNS, ask, ask_json, refused

pytestmark = pytest.mark.usefixtures("cluster")

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m [bold]kept[/bold] \x08\x7f\x9b31m\u202e\ud800\x0b\x85\n"
CONTROLS = {"\x1b", "\x07", "\x08", "\x7f", "\x9b", "\u202e", "\ud800", "\x0b", "\x85"}


def link(path: Path) -> None:
    secret = path.parent / "secret"
    secret.write_text('{"secret": "of another user"}\n')
    path.symlink_to(secret.absolute())


def oversized(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": link,
    "fifo": os.mkfifo,
    "oversized": oversized,
}


@pytest.fixture(params=NO_FILES)
def replace(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Put something that is no record in the place of a file."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        NO_FILES[request.param](path)

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
@pytest.mark.parametrize("command", ["status", "show n1", "logs n1", "watch tiny", f"show none{ESCAPES}"])
def test_text_is_printed_without_control_characters(
    hostile: RunDir,
    command: str,
    forced: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", forced)
    monkeypatch.delenv("NO_COLOR", raising=False)
    submit.main(command.split(" ", 1))
    printed = "".join(capsys.readouterr())
    if forced:  # the colours of this program
        printed = printed.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert printed
    assert not CONTROLS & {*printed}


def test_the_live_table_shows_markup_as_text(hostile: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    shown = console(sys.stdout)
    shown.width = 400
    shown.print(live_table([read_state(hostile)], 20, notice=f"slow{ESCAPES}"))
    out = capsys.readouterr().out
    assert "[bold]kept[/bold]" in out
    assert not CONTROLS & {*out}


def test_a_record_that_is_no_file_is_unreadable_or_left_out(
    replace: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(RUNS, "tiny/good", "done")
    unreadable = {"run.json": "planned", "submissions/0000.intent.json": "queued", "FAILED": "failed"}
    beside = ("progress.json", "metrics.json", "annotation.json", "env.json")
    for name, state in (unreadable | dict.fromkeys(beside, "done")).items():
        run = make_run(RUNS, f"tiny/{name.replace('/', '-')}", state)
        replace(run.path / name)
    states = {each["run"]: each for each in ask_json(capsys, "status")["runs"]}
    assert {name for name, each in states.items() if each["state"] == "done"} == {"good", *beside}
    for name in unreadable:
        found = states[name.replace("/", "-")]
        assert (found["state"], name in found["message"]) == ("corrupt", True)
    for name in states:
        assert "of another user" not in ask(capsys, f"show tiny/{name}")


@pytest.mark.parametrize(
    ("put", "options"),
    [
        *((name, "") for name in ("device", "link", "fifo")),
        *(("link", each) for each in ("-f", "--all", "--all -f")),
    ],
)
def test_a_log_that_is_no_file_is_refused(put: str, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    run.attempt(0).path.mkdir(parents=True)
    NO_FILES[put](run.attempt(0).rank_log(0))
    assert submit.main(["logs", "n1", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, str(run.attempt(0).rank_log(0)) in err) == ("", True)


@pytest.mark.parametrize("folder", ["submissions", "attempts", "attempts/000"])
def test_a_folder_of_a_run_that_is_a_link_is_not_followed(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    write_text(run.attempt(0).rank_log(0), "of another user\n")
    (run.path / folder).rename(tmp_path / "private")
    (run.path / folder).symlink_to(tmp_path / "private")
    (shown,) = ask_json(capsys, "status")["runs"]
    reason = f"{run.path / folder} is a symbolic link, not a folder"
    assert (shown["state"], shown["message"]) == ("corrupt", reason)
    for command in ("show n1", "logs n1", "logs n1 -f", "logs n1 --all"):
        assert submit.main(command.split()) == 2, command
        out, err = capsys.readouterr()
        assert (out, reason in err) == ("", True)


def test_sweeps_runs_and_checkpoints_may_be_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "elsewhere", "tiny/n1", "done")
    (run.path / "checkpoints").symlink_to(tmp_path)
    (RUNS / "other").mkdir(parents=True)
    (RUNS / "tiny").symlink_to(tmp_path / "elsewhere/tiny")
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
    for lock, command in (
        (RUNS / ".excluded-nodes.lock", "nodes --exclude a1"),
        (RUNS / "tiny/.lock", "sweep tiny.yaml --cluster local"),
    ):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.symlink_to(target)
        assert "symbolic link" in refused(capsys, command)
    assert target.read_text() == "of the user"


def test_other_users_cannot_write_what_a_submission_writes(capsys: pytest.CaptureFixture[str]) -> None:
    umask = os.umask(0)
    try:
        ask(capsys, "sweep tiny.yaml --cluster local")
        ask(capsys, "nodes --exclude a1")
    finally:
        os.umask(umask)
    found = [RUNS, *RUNS.rglob("*")]
    assert {".excluded-nodes.lock", ".code"} <= {path.name for path in found}
    assert not [path for path in found if not path.is_symlink() and path.stat().st_mode & stat.S_IWOTH]
    assert RUNS.stat().st_mode & stat.S_IWGRP  # a group may share the folder, as its umask has it
