"""The copy of the code of a `command`: its files, its limits, and paths into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.errors import ConfigError
from disttrain.records.planned import CommandCode
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy
from jobs.core.code_copy import CommandReader, find_source, read_source
from jobs.core.run_code import RunCommand, command_of_run, script_words
from tests.unit.test_collect_provenance import git

COPIED = ["conf/a.yaml", "helper.py", "notes.txt", "train.py"]
LEFT_OUT = [".hidden/secret.py", "venv/pyvenv.cfg", "venv/lib.py", "runs/s/r/run.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (*COPIED, *LEFT_OUT, "data.bin"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "data.bin").write_bytes(bytes((1 << 20) + 1))
    return root


def names(source: Path) -> list[str]:
    return sorted(read_source(source, source / "runs").files)


def read(folder: Path, *command: str) -> dict[str, Any]:
    return CommandReader(folder / "runs").read(command or ["train.py"], folder)


def test_a_folder_is_copied_without_environments_large_files_and_runs(folder):
    assert find_source(["train.py"], folder) == folder
    assert names(folder) == COPIED


def test_of_a_repository_its_tracked_files_and_new_python_files(folder):
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("venv\nruns\nignored.py\n")
    git(folder, "add", ".gitignore", "train.py", "conf")
    scripts = folder / "scripts"
    scripts.mkdir()
    for path in (folder / "ignored.py", scripts / "new.py", scripts / "ignored.py"):
        path.write_text("")
    assert find_source(["scripts/new.py"], folder) == find_source(["new.py"], scripts) == folder
    assert find_source(["-m", "scripts.new"], folder) == folder
    assert find_source(["scripts/ignored.py"], folder) == scripts, "git has no copy of it"
    assert names(scripts) == ["ignored.py", "new.py"]
    with pytest.raises(ConfigError, match=r"git ignores ignored\.py"):
        find_source(["ignored.py"], folder)
    tracked = [".gitignore", "conf/a.yaml", "train.py"]
    assert names(folder) == sorted([*tracked, ".hidden/secret.py", "helper.py", "scripts/new.py"])


def test_files_of_submodules_are_copied(folder, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "layers.py").write_text("width = 1\n")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "first")
    git(folder, "init", "-q")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    (folder / "lib" / "new.py").write_text("")
    assert {"train.py", "lib/layers.py", "lib/new.py"} < set(names(folder))
    git(folder, "submodule", "deinit", "-f", "lib")
    assert not any(name.startswith("lib") for name in names(folder))


def test_the_commit_is_that_of_the_repository_of_the_script(folder):
    assert read(folder)["git_commit"] is None
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "train.py").write_text("import other\n")
    code = CommandCode.model_validate(read(folder))
    assert (len(code.git_commit or ""), code.git_dirty) == (40, True)
    assert "+import other" in (code.git_diff or "")


def test_the_hash_is_of_sources_alone(folder):
    before = read(folder)["hash"]
    (folder / "notes.txt").write_text("other")
    assert read(folder)["hash"] == before
    (folder / "conf/a.yaml").write_text("a: 2\n")
    assert read(folder)["hash"] != before


def test_a_copy_is_started_and_searched_in_place_of_the_folder(folder, tmp_path):
    reader = CommandReader(tmp_path / "runs")
    about = reader.read(["train.py"], folder)
    reader.write()

    def of_run(words: list[str], workdir: str = "submit", **changes: str) -> RunCommand:
        config = {"command": words, "job": {"workdir": workdir}}
        record = {"config": config, "provenance": {"command": {**about, **changes}}}
        command = command_of_run(RunDir(tmp_path / "runs" / "s" / "r"), record)
        assert command is not None
        return command

    script, module = of_run(["train.py", "--lr", "1"]), of_run(["-m", "train"])
    copy = script.copy
    assert copy is not None
    assert (copy / "helper.py").read_text() == "helper.py"
    assert script.words_to_start() == [f"{copy}/train.py", "--lr", "1"]
    assert script.search_path(f"conf:/else:{folder}") == [f"{copy}/conf", "/else", str(copy)]
    assert (module.words_to_start(), module.search_path("")) == (["-m", "train"], [str(copy)])
    workdirs = [of_run(["train.py"], workdir).workdir for workdir in ("submit", "code", "run")]
    assert workdirs == [folder, copy, tmp_path / "runs" / "s" / "r"]
    assert script.problem is None
    assert "working directory" in (of_run(["train.py"], folder=str(tmp_path / "gone")).problem or "")
    assert "does not exist" in (of_run(["train.py"], path=".code/lost").problem or "")


def test_an_installed_module_is_not_copied(folder):
    about = read(folder, "-m", "torch.utils.collect_env")
    assert (about["source"], about["path"], about["hash"]) == (None, None, None)


@pytest.mark.parametrize(("limit", "value"), [("_MAX_FILES", 3), ("_MAX_BYTES", 30)])
def test_a_missing_script_and_a_folder_that_is_too_large_are_refused(folder, monkeypatch, limit, value):
    with pytest.raises(ConfigError, match=r"no file 'trian\.py'"):
        find_source(["trian.py"], folder)
    monkeypatch.setattr(code_copy, limit, value)
    with pytest.raises(ConfigError, match="move the code"):
        names(folder)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("train.py a.py", ["train.py"]),
        ("-m train b.py", ["-m", "train"]),
        ("accelerate launch --x=a.py train.py b.py", ["train.py"]),
        ("bash conf/run.sh", ["conf/run.sh"]),
        ("./train --x", ["./train"]),
        ("/usr/bin/env x", []),
        ("deepspeed", []),
    ],
)
def test_the_script_within_a_command(command, script, tmp_path):
    words = command.split()
    assert script_words(words) == tuple(script)
    started = RunCommand(words, tmp_path, tmp_path, tmp_path / "copy", tmp_path).words_to_start()
    changed = [word for word in started if word not in words]
    assert changed == ([str(tmp_path / "copy" / script[0])] if len(script) == 1 else [])


def test_a_line_of_shell_is_no_script():
    assert script_words(["bash", "-c", "cd x && python train.py"]) == ()
