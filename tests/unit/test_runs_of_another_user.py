"""Commands on a runs folder of another user: nothing is written, no traceback."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import STATES

NOBODY = 65534
READING = (
    ["status"],
    ["status", "--json"],
    ["status", "--long"],
    ["status", "--csv", "-"],
    ["show", "tiny/done"],
    ["show", "tiny/failed", "--json"],
    ["logs", "tiny/failed"],
)
WRITING = (
    ["cancel", "--graceful", "tiny"],
    ["resume", "tiny"],
    ["clean", "tiny"],
    ["annotate", "tiny/done", "--note", "x"],
    ["nodes", "--exclude", "node-1"],
)


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    """A folder that everybody may read and nobody may write, with a run of each state."""
    folder = Path(tempfile.mkdtemp())
    for state in STATES:
        make_run(folder / "runs", f"tiny/{state}", state)
    make_run(folder / "runs", "other/old", "done")
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield folder / "runs"
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def as_nobody(argv: list[str], runs: Path) -> tuple[int, str]:
    """Exit code and output of submit.py as another user; as this user where it may not change to another."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 70
            sys.stdout = sys.stderr = os.fdopen(os.dup(output.fileno()), "w")
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                code = submit.main([*argv, "--runs", str(runs)])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read().decode()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def said_to_nobody(argv: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, int, str]:
    """Exit code of a command as this user, and exit code and output as another one."""
    own = submit.main([*argv, "--runs", str(runs)])  # imports all that the child needs
    capsys.readouterr()
    code, said = as_nobody(argv, runs)
    assert "Traceback" not in said
    return own, code, said


def test_commands_that_read_write_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(runs)
    for argv in READING:
        own, code, said = said_to_nobody(argv, runs, capsys)
        assert code == own, said
    assert tree(runs) == before


@pytest.mark.parametrize("argv", WRITING, ids=lambda argv: argv[0])
def test_commands_that_write_are_refused_in_one_line(
    runs: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said_to_nobody(["status"], runs, capsys)
    for module in (argv[0], "trash"):  # the child cannot read modules below /root
        importlib.import_module(f"jobs.cli.{module}")
    before = tree(runs)
    code, said = as_nobody(argv, runs)
    assert (code, said.count("\n"), said.startswith("error: "), str(runs) in said) == (2, 1, True, True), said
    assert tree(runs) == before


def test_own_runs_are_resumed_beside_those_of_another_user_in_one_sweep(
    tmp_path: Path,
    cluster: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("mine", "theirs"):
        make_run(tmp_path, f"tiny/{name}", "failed")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "theirs" not in str(path) and access(path, mode))
    assert submit.main(["resume", "--runs", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"no write access to {tmp_path}/tiny/theirs" in said
    assert [name for name, _ in cluster.submitted] == ["mine"]


@pytest.mark.parametrize("private", ["tiny/done", "tiny/done/submissions", "other"])
def test_what_others_may_not_read_is_named_and_hides_no_other_run(
    runs: Path, private: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    mode = (runs / private).stat().st_mode
    request.addfinalizer(lambda: (runs / private).chmod(mode))
    said_to_nobody(["status"], runs, capsys)
    (runs / private).chmod(0)
    _, code, said = said_to_nobody(["status"], runs, capsys)
    assert code == 0, said
    for text in (private, "Permission denied", "crashed: rank 1: ValueError: no"):
        assert text in said
    assert said_to_nobody(["show", "tiny/failed"], runs, capsys)[1] == 0
