"""The copy of the code of a `command`: its files, its limits, and paths into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.planned import CommandCode
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy
from jobs.core.code_copy import CommandReader, find_source, read_source
from jobs.core.run_code import RunCommand, command_of_run
from tests.unit.test_collect_provenance import git

FILES = {
    "train.py": "import helper\n",
    "helper.py": "x = 1\n",
    "conf/a.yaml": "a: 1\n",
    "data.bin": "0" * (1 << 20) + "0",
    ".hidden/secret.py": "",
    "venv/pyvenv.cfg": "",
    "venv/lib.py": "",
    "runs/s/r/run.json": "{}",
    "notes.txt": "n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(source: Path) -> list[str]:
    return sorted(read_source(source, source / "runs").files)


def test_a_folder_is_copied_without_environments_large_files_and_runs(folder: Path) -> None:
    assert find_source(["train.py"], folder) == folder
    assert names(folder) == ["conf/a.yaml", "helper.py", "notes.txt", "train.py"]


def test_of_a_repository_its_tracked_files_and_new_python_files(folder: Path) -> None:
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("venv\nruns\nignored.py\n")
    git(folder, "add", ".gitignore", "train.py", "conf")
    (folder / "ignored.py").write_text("")
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "new.py").write_text("")
    assert find_source(["scripts/new.py"], folder) == find_source(["new.py"], scripts) == folder
    tracked = [".gitignore", "conf/a.yaml", "train.py"]
    assert names(folder) == sorted([*tracked, ".hidden/secret.py", "helper.py", "scripts/new.py"])
    assert find_source(["ignored.py"], folder) == folder  # of its folder, as git has no copy of it
    assert find_source(["-m", "scripts.new"], folder) == folder


def test_files_of_submodules_are_copied(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "layers.py").write_text("width = 1\n")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "first")
    git(folder, "init", "-q")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(folder, "add", "train.py")
    (folder / "lib" / "new.py").write_text("")
    assert {"train.py", "lib/layers.py", "lib/new.py"} < set(names(folder))
    git(folder, "submodule", "deinit", "-f", "lib")
    assert [name for name in names(folder) if name.startswith("lib")] == []


def test_the_commit_is_that_of_the_scripts_repository(folder: Path, tmp_path: Path) -> None:
    without = CommandReader(tmp_path / "runs").read(["train.py"], folder)
    assert (without["git_commit"], without["git_dirty"]) == (None, None)
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "train.py").write_text("import other\n")
    code = CommandCode.model_validate(CommandReader(tmp_path / "runs").read(["train.py"], folder))
    assert code.git_commit is not None
    assert len(code.git_commit) == 40
    assert code.git_dirty
    assert "+import other" in str(code.git_diff)


def test_the_hash_is_of_sources_alone(folder: Path) -> None:
    def present() -> str:
        return CommandReader(folder / "runs").read(["train.py"], folder)["hash"]

    before = present()
    (folder / "notes.txt").write_text("other")
    assert present() == before
    (folder / "conf/a.yaml").write_text("a: 2\n")
    assert present() != before


def test_a_copy_is_started_and_searched_in_place_of_the_folder(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    reader = CommandReader(runs)
    command = ["train.py", "--lr", "1"]
    about = reader.read(command, folder)
    reader.write()
    CommandCode.model_validate(about)

    def of_run(words: list[str], **changes: str) -> RunCommand:
        config = {"command": words, "job": {"workdir": "submit"}}
        record = {"config": config, "provenance": {"command": {**about, **changes}}}
        found = command_of_run(RunDir(runs / "s" / "r"), record)
        assert found is not None
        return found

    started = of_run(command)
    copy = started.copy
    assert copy is not None
    assert (copy / "helper.py").read_text() == "x = 1\n"
    assert started.words_to_start() == [f"{copy}/train.py", "--lr", "1"]
    assert started.search_path(f"conf:/else:{folder}") == [
        f"{copy}/conf", "/else", str(copy),
    ]  # fmt: skip
    module = of_run(["-m", "train"])
    assert module.search_path("") == [str(copy)]
    assert module.words_to_start() == ["-m", "train"]
    assert started.problem is None
    assert "working directory" in (of_run(command, folder=str(tmp_path / "gone")).problem or "")
    assert "does not exist" in (of_run(command, path=".code/lost").problem or "")


def test_an_installed_module_is_not_copied(folder: Path) -> None:
    about = CommandReader(folder / "runs").read(["-m", "torch.utils.collect_env"], folder)
    assert (about["source"], about["path"], about["hash"]) == (None, None, None)


def test_a_missing_script_and_a_folder_that_is_too_large_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"no file 'trian\.py'"):
        find_source(["trian.py"], folder)
    monkeypatch.setattr(code_copy, "_MAX_FILES", 3)
    with pytest.raises(ConfigError, match="to copy; move the script"):
        names(folder)
