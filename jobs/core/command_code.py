"""The code of a `command`: the files around the script, copied so that later edits do not change a run.

In a git repository a copy holds the tracked files and all other Python files that git does not ignore, those
of submodules too. Elsewhere it holds the files of the script's folder. Hidden folders, virtual environments,
the runs folder and files above 1 MiB are left out. An installed module (`-m package.train`) is not copied.
Standard library only.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import git_state, run_git
from disttrain.records.run_directory import RunDir
from jobs.core.code_snapshot import CodeContent, CommandCode, snapshot_path, write_snapshot

_MAX_FILE_BYTES = 1024 * 1024
_MAX_FILES = 10_000
_MAX_BYTES = 64 * 1024 * 1024
_WITHOUT_GIT = {"git_commit": None, "git_dirty": None, "git_diff": None}


def script_file(command: Sequence[str], folder: Path) -> Path | None:
    """The file of the script or module of a command in `folder`; None for an installed module.

    Raises `ConfigError` for a script that does not exist.
    """
    if command[0] != "-m":
        path = folder / command[0]
        if not path.is_file():
            raise ConfigError(f"command: no file {command[0]!r} in {folder}")
        return path
    base = folder.joinpath(*command[1].split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__main__.py") if path.is_file()), None)


def find_source(command: Sequence[str], folder: Path) -> Path | None:
    """The folder to copy: that of the git repository, else of the script, or of a module `folder` itself.

    None for an installed module. Raises `ConfigError` as `script_file`.
    """
    script = script_file(command, folder)
    if script is None:
        return None
    script = script.resolve()
    top = run_git(script.parent, "rev-parse", "--show-toplevel")
    ignored = top is not None and run_git(script.parent, "check-ignore", str(script)) is not None
    if top is not None and not ignored:
        return Path(top.rstrip("\n"))
    return folder.resolve() if command[0] == "-m" else script.parent


def read_source(source: Path, root: Path) -> CodeContent:
    """The content of a copy of `source`; `root` is the runs folder. Raises `ConfigError` above the limits."""
    listed = _listed_by_git(source)
    kind: Literal["git", "files"] = "files" if listed is None else "git"
    names = _walk(source) if listed is None else iter(listed)
    runs = f"{os.path.relpath(root.resolve(), source.resolve())}/"
    files: dict[str, bytes] = {}
    total = 0
    for name in names:
        path = source / name
        if name.startswith(runs) or not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            continue
        files[name] = path.read_bytes()
        total += len(files[name])
        if len(files) > _MAX_FILES or total > _MAX_BYTES:
            raise ConfigError(
                f"command: {source} holds over {_MAX_FILES} files, or {_MAX_BYTES >> 20} MiB of files up "
                "to 1 MiB, to copy; move the script to a folder of its own or into a git repository"
            )
    return CodeContent(kind, files)


def _listed_by_git(folder: Path) -> list[str] | None:
    """Paths below a folder of a repository that belong to its copy; None outside of a repository.

    git lists a submodule as its folder. The files of a submodule come from the repository in that folder.
    """
    tracked = run_git(folder, "ls-files", "-z")
    if tracked is None:
        return None
    others = run_git(folder, "ls-files", "-z", "--others", "--exclude-standard", "*.py")
    names = []
    for name in filter(None, f"{tracked}{others or ''}".split("\0")):
        if (folder / name / ".git").exists():
            names += [f"{name}/{inner}" for inner in _listed_by_git(folder / name) or ()]
        else:
            names.append(name)
    return names


def _walk(source: Path) -> Iterator[str]:
    for place, folders, names in os.walk(source):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".pyc"):
                yield Path(place, name).relative_to(source).as_posix()


class CommandReader:
    """Reads the code of commands, each folder once. Writes below the runs folder `root`, in `write` alone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: dict[tuple[str, ...], Path | None] = {}
        self._contents: dict[Path, CodeContent] = {}
        self._git: dict[Path, Mapping[str, Any]] = {}

    def read(self, command: Sequence[str], folder: Path) -> CommandCode:
        """The `records.CommandCode` of a command that is started in `folder`. Raises `ConfigError`."""
        script = (str(folder), *command[: 2 if command[0] == "-m" else 1])
        if script not in self._sources:
            self._sources[script] = find_source(command, folder)
        source = self._sources[script]
        if source is None:
            return {"folder": str(folder), "source": None, "path": None, "hash": None, **_WITHOUT_GIT}
        if source not in self._contents:
            content = self._contents[source] = read_source(source, self._root)
            self._git[source] = git_state(source, ".") if content.kind == "git" else _WITHOUT_GIT
        content = self._contents[source]
        path = snapshot_path(self._root, content).relative_to(self._root).as_posix()
        code = {"source": str(source), "path": path, "hash": content.command_hash}
        return {"folder": str(folder), **code, **self._git[source]}

    def write(self) -> None:
        """Copy all code that was read. Call it inside `hold_snapshots`. Raises `ConfigError`."""
        for content in self._contents.values():
            write_snapshot(self._root, content)


@functools.cache
def hash_of_source(source: str, root: Path) -> str | None:
    """Hash of the files in `source` at the first call of this process; None if they cannot be read."""
    try:
        return read_source(Path(source), root).command_hash
    except (OSError, ConfigError):
        return None


def hash_in(record: Mapping[str, Any]) -> str:
    """Hash of the code that decides the results of a run: that of its command, else of the trainer."""
    about = of_run(record)
    code: str = record["provenance"]["code"]["hash"] if about is None else about["hash"] or ""
    return code


def of_run(record: Mapping[str, Any]) -> CommandCode | None:
    """The `records.CommandCode` in a `run.json`; None for a run of the trainer."""
    found: CommandCode | None = record.get("provenance", {}).get("command")
    return found


def copy_of_run(run: RunDir, about: CommandCode) -> Path | None:
    """The copy of the code of a command; None for an installed module."""
    return (run.path.parent.parent / about["path"]).absolute() if about["path"] else None


def folders_of_run(run: RunDir, record: Mapping[str, Any]) -> list[Path]:
    """Folders that the processes of a command need, besides the run directory; none for the trainer."""
    about = of_run(record)
    if about is None:
        return []
    copy = copy_of_run(run, about)
    return [*([] if copy is None else [copy]), Path(about["folder"])]


def working_directory(run: RunDir, record: Mapping[str, Any], about: CommandCode) -> Path:
    """The working directory of the ranks of a command (`job.workdir`)."""
    chosen = record["config"]["job"].get("workdir", "submit")  # not in the records of older code
    copy = copy_of_run(run, about)
    if chosen == "code" and copy is not None:
        return copy
    return run.path.absolute() if chosen == "run" else Path(about["folder"])


def problem(run: RunDir, about: CommandCode) -> str | None:
    """Why a command cannot start on this machine, in one line; None if it can."""
    if not os.path.isdir(about["folder"]):
        return f"the working directory of the command does not exist here: {about['folder']}"
    copy = copy_of_run(run, about)
    if copy is not None and not copy.is_dir():
        again = "`submit.py resume` starts the run with the present files"
        return f"the copy of the script does not exist ({copy}); {again}"
    return None


def words_to_start(command: Sequence[str], about: CommandCode, copy: Path | None) -> list[str]:
    """The words of a command in which the script is that of the copy."""
    if command[0] == "-m" or copy is None:
        return list(command)
    return [str(in_copy(Path(about["folder"], command[0]), about, copy)), *command[1:]]


def in_copy(path: Path, about: CommandCode, copy: Path) -> Path:
    """The counterpart of `path` in the copy; `path` itself outside of the copied folder."""
    source, real = about["source"], path.resolve()
    assert source is not None
    return copy / real.relative_to(source) if real.is_relative_to(source) else path


def search_path(command: Sequence[str], about: CommandCode, copy: Path | None, inherited: str) -> list[str]:
    """Module search path of a command: that of the submission, with the copy in place of copied folders."""
    entries = [Path(about["folder"], entry) for entry in inherited.split(":") if entry]
    if command[0] == "-m" and copy is not None:
        entries.insert(0, Path(about["folder"]))
    return [str(entry if copy is None else in_copy(entry, about, copy)) for entry in entries]
