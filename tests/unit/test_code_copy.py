"""Copies of the code: their content, and when they are taken, refused and removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

PACKAGED = {
    "submit.py", "disttrain/__init__.py", "disttrain/data/words.yaml", "disttrain/notes.txt",
    "jobs/__init__.py", "jobs/profiles/site.yaml", "sweeps/default.yaml", "analysis/__init__.py",
}  # fmt: skip
BESIDE = {"README.md", "tests/test_it.py", "docs/big.png", ".ci/run", "mine.py", "jobs/__pycache__/x.pyc"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name in PACKAGED | BESIDE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    return root


def test_a_renamed_file_is_other_code() -> None:
    one, other = (code_copy.CodeContent("files", {name: b"x = 1"}) for name in ("train.py", "model.py"))
    assert one.command_hash != other.command_hash


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")


def test_in_a_checkout_it_holds_the_tracked_files_as_they_are_now(source: Path) -> None:
    commit(source)
    for name in ("jobs/new.py", "jobs/scratch.txt", "alone.py"):
        (source / name).touch()
    (source / "jobs/__init__.py").write_text("x = 2\n")
    (source / "README.md").unlink()
    (source / "large.bin").write_bytes(b"0" * 2_000_000)
    git(source, "add", "large.bin")
    content = code_copy.read_code(source)
    assert (content.kind, content.files["jobs/__init__.py"]) == ("git", b"x = 2\n")
    assert {*content.files} == PACKAGED | {"jobs/new.py", "mine.py", "jobs/__pycache__/x.pyc"}


@pytest.mark.parametrize("path", [None, ""], ids=["no repository", "no git"])
def test_elsewhere_it_holds_the_files_of_the_packages(
    source: Path, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:
        monkeypatch.setenv("PATH", path)
    content = code_copy.read_code(source)
    assert (content.kind, {*content.files}) == ("files", PACKAGED)


def test_a_project_is_copied_where_a_config_names_a_module_of_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for name in ("mine/net.py", "table.csv", "jobs/own.py", "submit.py", "runs/s/x.py", ".venv/x.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x = 3\n")
    monkeypatch.chdir(project)
    content = code_copy.read_code(source)
    runs = project / "runs"
    assert code_copy.with_project(content, [{"model": {"kind": "numpy.linalg:norm"}}], runs) is content
    for config in ({"model": {"kind": "mine.net:Net"}}, {"optim": {"schedule": "mine:warm"}}):
        copy = code_copy.with_project(content, [{}, config], runs)
        assert {*copy.files} == PACKAGED | {"mine/net.py", "table.csv"}
        assert copy.files["submit.py"] == b"# submit.py\n"
        assert copy.record(source)["hash"] == content.record(source)["hash"]


def test_packages_beside_an_installed_one_are_not_searched() -> None:
    content = code_copy.CodeContent("files", {})
    for folder, source in (("/v/lib/site-packages", None), ("/home/ada/disttrain", "/home/ada/disttrain")):
        assert content.record(Path(folder))["source"] == source


def test_one_copy_for_each_content_with_the_hash_of_its_sources(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first = code_copy.copy_code(root, source)
    Code.model_validate(first)
    path = root / first["path"]
    inode = path.stat().st_ino
    assert first["hash"] == code_hash(source) == code_hash(path)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()} == {0o444}
    with tarfile.open(run_code.archive_of(path)) as archive:
        assert {*archive.getnames()} == PACKAGED
    run_code.archive_of(path).unlink()
    assert code_copy.copy_code(root, source) == first
    assert path.stat().st_ino == inode
    assert run_code.archive_of(path).exists(), "a missing archive is written again"
    (source / "sweeps/default.yaml").write_text("model: {kind: mlp}\n")
    second = code_copy.copy_code(root, source)
    assert (second["hash"], second["path"] != first["path"]) == (first["hash"], True)


def test_an_altered_copy_is_not_used_again(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    path = root / code_copy.copy_code(root, source)["path"]
    for altered in ("jobs/__pycache__/x.pyc", "jobs/more.py"):
        (path / altered).parent.mkdir(exist_ok=True)
        (path / altered).touch()
        code_copy.copy_code(root, source)
    assert not (path / "jobs").joinpath("more.py").exists()
    (damaged,) = path.parent.glob("*.damaged-*")
    assert (damaged / "jobs/__pycache__").exists(), "caches of Python are no alteration"
    assert f"{path} was altered" in capsys.readouterr().err


def test_two_submitters_write_one_copy(source: Path, tmp_path: Path) -> None:
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


def test_a_sweep_takes_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = code_copy.copy_code
    monkeypatch.setattr(code_copy, "copy_code", lambda root, **_: taken.append(root) or take(root))
    for _ in range(2):  # the second time there is nothing to submit
        submit(sweep_plan("a", "b"), FakeScheduler(), tmp_path)
    assert taken == [tmp_path]
    codes = [read_json(tmp_path / "demo" / name / "run.json")["provenance"]["code"] for name in "ab"]
    assert {(code["path"], code["taken"]) for code in codes} == {(codes[0]["path"], "submission")}
    assert (tmp_path / codes[0]["path"] / "submit.py").exists()


def run_of(root: Path, code: dict[str, Any]) -> tuple[RunDir, dict[str, Any]]:
    return RunDir(root / "demo" / "a"), {"provenance": {"code": code}}


def test_a_job_refuses_other_code(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    code = code_copy.copy_code(root, source)
    path = root / code["path"]
    assert "the run was submitted with" in str(run_code.code_problem(*run_of(root, code)))
    monkeypatch.setattr(run_code, "CODE_ROOT", path)
    monkeypatch.setattr(run_code, "code_hash", lambda: code_hash(path))
    assert run_code.code_problem(*run_of(root, code)) is None
    assert "was changed" in str(run_code.code_problem(*run_of(root, code | {"hash": "other"})))
    os.rename(path, tmp_path / "gone")
    assert "does not exist" in str(run_code.code_problem(*run_of(root, code)))
    assert run_code.code_problem(*run_of(root, {"hash": "planned by hand"})) is None


def test_modules_that_a_copy_lacks(source: Path) -> None:
    config = {
        "model": {"kind": "theirs.models:Net", "layers": 2},
        "data": {"kind": "mine:source", "path": "/data:/more"},
        "telemetry": {"sinks": ["tensorboard", "disttrain.telemetry.sinks.x:Sink", "other:Sink"]},
        "job": {"env": {"NCCL_IB_HCA": "mlx5:1", "A": "b:c"}},
    }
    assert run_code.missing_modules(config, source) == ["other", "theirs.models"]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder with the runs `demo/a` and `demo/b`, which were never submitted."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    submit(sweep_plan("a", "b"), FakeScheduler(), root)
    for part in root.glob("demo/*/submissions/*"):
        part.unlink()
    return root


def test_clean_moves_copies_without_a_run(planned: Path, source: Path) -> None:
    other = planned / code_copy.copy_code(planned, source)["path"]
    path = planned / "demo/b/run.json"
    record = read_json(path)
    used = planned / record["provenance"]["code"]["path"]
    record["provenance"]["code"]["path"] = str(other.relative_to(planned))
    write_json(path, record)
    unpacked = used.with_name(f"{used.name}.7")
    unpacked.mkdir()
    with code_copy.hold_copies(planned):
        assert command.main(["clean", "demo/b"]) == 0
        assert other.exists(), "somebody is submitting at this moment"
    with code_copy.unreferenced_copies(planned, lambda: [RunDir(planned / "demo/a")]) as found:
        assert found == sorted([other, run_code.archive_of(other)]), "not what a job unpacks of a copy in use"
    assert command.main(["clean", "demo/a"]) == 0
    moved = {path.name for path in planned.glob(".trash/*/.code/*")}
    assert moved == {unpacked.name, *(path.name + end for path in (used, other) for end in ("", ".tar"))}


def test_clean_keeps_a_copy_that_is_submitted_meanwhile(
    planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = planned / FOLDER / "7-0-31000.json"
    lock = code_copy.locked

    @contextlib.contextmanager
    def after_a_submission(path: Path, kind: int) -> Iterator[int]:
        if kind & fcntl.LOCK_EX:
            submit(sweep_plan("c"), FakeScheduler(), planned)
            write_json(by_hand, {"run": "demo/c"})
        with lock(path, kind) as file:
            yield file

    monkeypatch.setattr(code_copy, "locked", after_a_submission)
    assert command.main(["clean", "demo"]) == 0
    run = RunDir(planned / "demo/c")
    assert (run_code.code_of_run(run, read_json(run.run_json)) / "jobs").is_dir()
    assert by_hand.exists()
