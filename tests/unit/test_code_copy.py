"""Code snapshots: their content, and when they are taken, refused and removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit as command
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import Code
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, run_code
from jobs.submission.by_hand import FOLDER
from tests.support.jobs import FakeScheduler, in_a_fork, submit, sweep_plan, wait_for
from tests.unit.test_collect_provenance import git


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    files = {
        "submit.py": "print('submit')\n",
        "README.md": "# read me\n",
        "disttrain/__init__.py": "",
        "disttrain/data/words.yaml": "a: 1\n",
        "disttrain/notes.txt": "notes\n",
        "jobs/__init__.py": "x = 1\n",
        "jobs/__pycache__/x.pyc": "cached",
        "jobs/profiles/site.yaml": "name: site\n",
        "sweeps/default.yaml": "model: {}\n",
        "analysis/__init__.py": "",
        "tests/test_it.py": "",
        "docs/big.png": "png",
        ".ci/run": "",
        "mine.py": "mine = 1\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_in_a_checkout_it_holds_the_tracked_files_as_they_are_now(source: Path) -> None:
    git(source, "init")
    git(source, "add", ".")
    git(source, "commit", "-m", "first")
    (source / "jobs" / "__init__.py").write_text("x = 2\n")
    (source / "jobs" / "new.py").write_text("new = 1\n")
    (source / "jobs" / "scratch.txt").write_text("not tracked\n")
    (source / "alone.py").write_text("not tracked, and in no package\n")
    (source / "README.md").unlink()
    (source / "large.bin").write_bytes(b"0" * 2_000_000)
    git(source, "add", "large.bin")
    content = code_copy.read_code(source)
    assert content.kind == "git"
    assert content.files["jobs/__init__.py"] == b"x = 2\n"
    assert sorted(content.files) == [
        "analysis/__init__.py", "disttrain/__init__.py", "disttrain/data/words.yaml", "disttrain/notes.txt",
        "jobs/__init__.py", "jobs/__pycache__/x.pyc", "jobs/new.py", "jobs/profiles/site.yaml", "mine.py",
        "submit.py", "sweeps/default.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [None, ""])
def test_elsewhere_it_holds_the_files_of_the_packages(
    source: Path, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:  # not even git is there
        monkeypatch.setenv("PATH", path)
    content = code_copy.read_code(source)
    assert content.kind == "files"
    assert sorted(content.files) == [
        "analysis/__init__.py", "disttrain/__init__.py", "disttrain/data/words.yaml", "disttrain/notes.txt",
        "jobs/__init__.py", "jobs/profiles/site.yaml", "submit.py", "sweeps/default.yaml",
    ]  # fmt: skip


def test_it_has_the_hash_of_its_sources(source: Path, tmp_path: Path) -> None:
    taken = code_copy.copy_code(tmp_path / "runs", source)
    Code.model_validate(taken)
    path = tmp_path / "runs" / taken["path"]
    assert taken["hash"] == code_hash(source) == code_hash(path)
    assert taken["source"] == str(source)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()} == {0o444}


def test_one_copy_for_each_content(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first = code_copy.copy_code(root, source)
    before = (root / first["path"]).stat().st_ino
    assert code_copy.copy_code(root, source) == first
    assert (root / first["path"]).stat().st_ino == before
    (source / "sweeps" / "default.yaml").write_text("model: {kind: mlp}\n")
    second = code_copy.copy_code(root, source)
    assert (second["hash"], second["path"] != first["path"]) == (first["hash"], True)
    assert sorted(path.name for path in (root / ".code").iterdir() if path.is_dir()) == sorted(
        Path(each["path"]).name for each in (first, second)
    )


def test_an_altered_copy_is_not_used_again(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    path = root / code_copy.copy_code(root, source)["path"]
    (path / "jobs" / "__pycache__").mkdir()
    (path / "jobs" / "__pycache__" / "x.pyc").write_bytes(b"Python keeps these here")
    code_copy.copy_code(root, source)
    assert (path / "jobs" / "__pycache__").exists(), "that is no alteration"
    (path / "jobs" / "more.py").write_text("")
    code_copy.copy_code(root, source)
    assert not (path / "jobs" / "more.py").exists()
    assert f"{path} was altered" in capsys.readouterr().err


def test_two_submitters_write_one_snapshot(source: Path, tmp_path: Path) -> None:
    for each in range(3):
        (source / "jobs" / f"more{each}.py").write_text("y = 1\n" * 1000)
    root = tmp_path / "runs"
    taking = [in_a_fork(lambda: os._exit(0 if code_copy.copy_code(root, source) else 1)) for _ in range(8)]
    assert [wait_for(pid) for pid in taking] == [0] * 8
    name = code_copy.read_code(source).name
    assert sorted(os.listdir(root / ".code")) == [name, f"{name}.tar"], "nothing else is left"


def test_a_folder_that_cannot_be_written_is_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot keep a copy of the code in .*\.code: Not a directory"):
        code_copy.copy_code(tmp_path / "runs", source)


def test_a_sweep_takes_one_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = code_copy.copy_code
    monkeypatch.setattr(code_copy, "copy_code", lambda root, **_: taken.append(root) or take(root))
    submit(sweep_plan("a", "b", "c"), FakeScheduler(), tmp_path)
    assert taken == [tmp_path]
    codes = [read_json(tmp_path / "demo" / name / "run.json")["provenance"]["code"] for name in "abc"]
    assert {(code["path"], code["taken"]) for code in codes} == {(codes[0]["path"], "submission")}
    assert (tmp_path / codes[0]["path"] / "submit.py").exists()
    submit(sweep_plan("a", "b", "c"), FakeScheduler(), tmp_path)
    assert taken == [tmp_path], "there was nothing to submit"


def run_of(root: Path, code: dict[str, str]) -> tuple[RunDir, dict]:
    run = RunDir(root / "demo" / "a")
    record = {"provenance": {"code": code}}
    write_json(run.run_json, record)
    return run, record


def test_a_job_refuses_other_code(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    code = code_copy.copy_code(root, source)
    run, record = run_of(root, code)
    path = root / code["path"]
    assert "the run was submitted with" in str(run_code.code_problem(run, record))
    monkeypatch.setattr(run_code, "CODE_ROOT", path)
    monkeypatch.setattr(run_code, "code_hash", lambda: code_hash(path))
    assert run_code.code_problem(run, record) is None
    changed = path / "disttrain" / "__init__.py"
    changed.chmod(0o644)
    changed.write_text("x = 3\n")
    assert "was changed" in str(run_code.code_problem(run, record))
    os.rename(path, tmp_path / "gone")
    assert "does not exist" in str(run_code.code_problem(run, record))
    assert run_code.code_problem(*run_of(root, {"hash": "planned by hand"})) is None


def test_modules_that_a_snapshot_lacks(source: Path) -> None:
    config = {
        "model": {"kind": "theirs.models:Net", "layers": 2},
        "data": {"kind": "mine:source", "path": "/data:/more"},
        "telemetry": {"sinks": ["tensorboard", "disttrain.telemetry.sinks.x:Sink", "other:Sink"]},
        "job": {"env": {"NCCL_IB_HCA": "mlx5:1", "A": "b:c"}},
    }
    assert run_code.missing_modules(config, source) == ["other", "theirs.models"]


def test_clean_moves_unreferenced_snapshots(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    submit(sweep_plan("a", "b"), FakeScheduler(), root)
    other = code_copy.copy_code(root, source)
    record = read_json(root / "demo" / "b" / "run.json")
    used = root / record["provenance"]["code"]["path"]
    record["provenance"]["code"]["path"] = other["path"]
    write_json(root / "demo" / "b" / "run.json", record)
    for run in "ab":
        for part in (root / "demo" / run / "submissions").iterdir():
            part.unlink()  # never submitted: nothing stands in the way
    with code_copy.hold_copies(root):
        assert command.main(["clean", "demo/b"]) == 0
        assert (root / other["path"]).exists(), "somebody is submitting at this moment"
    assert command.main(["clean", "demo/a"]) == 0
    assert not used.exists()
    assert not (root / other["path"]).exists()
    moved = [path.name for path in (root / ".trash").glob("*/.code/*")]
    names = [used.name, Path(other["path"]).name]
    assert sorted(moved) == sorted([*names, *(f"{name}.tar" for name in names)])


def test_clean_keeps_a_snapshot_that_is_submitted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    submit(sweep_plan("a"), FakeScheduler(), root)
    for part in (root / "demo" / "a" / "submissions").iterdir():
        part.unlink()
    word = root / FOLDER / "7-0-31000.json"
    lock = code_copy.locked

    @contextlib.contextmanager
    def after_a_submission(path: Path, kind: int) -> Iterator[int]:
        if kind & fcntl.LOCK_EX:
            submit(sweep_plan("b"), FakeScheduler(), root)
            write_json(word, {"run": "demo/b"})
        with lock(path, kind) as file:
            yield file

    monkeypatch.setattr(code_copy, "locked", after_a_submission)
    assert command.main(["clean", "demo/a"]) == 0
    b = RunDir(root / "demo" / "b")
    assert (run_code.code_of_run(b, read_json(b.run_json)) / "jobs").is_dir()
    assert word.exists()


def test_the_command_line_runs_from_a_snapshot(tmp_path: Path) -> None:
    """The job that writes a sweep's report does."""
    taken = code_copy.copy_code(tmp_path / "runs")
    program = tmp_path / "runs" / taken["path"] / "submit.py"
    done = subprocess.run(
        [sys.executable, program, "status"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(program.parent)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
