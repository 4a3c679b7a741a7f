"""Copies of code: each run starts the code it was submitted with, also after edits and upgrades.

    runs/.code/<hash>.tar    one archive per content, shared by all sweeps that use it
    runs/.code/<hash>/       the archive unpacked, where jobs find it; a batch script unpacks it if missing

In a git checkout, the copy of this package holds the tracked files with their current content, elsewhere the
files of the installed packages; in both cases every Python and YAML file of the packages. Tests and documents
are left out, as are large files beside the packages. Where a config names a module of the working directory,
the copy also holds the files there, chosen as those of a command.

The copy of a `command` holds, in a git repository, the tracked files and all other Python files that git does
not ignore, those of submodules too; elsewhere the files of the script's folder. Hidden folders, virtual
environments, the runs folder and files above 1 MiB are left out. An installed module (`-m package.train`) is
not copied.

Files are read-only, and folders writable, so that they can be deleted. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import git_state, hash_sources, run_git, tracked_files
from disttrain.records.json_files import read_json_or_none, write_bytes
from disttrain.records.run_directory import RunDir
from jobs.core.lock import locked
from jobs.core.progress import Progress, without_progress
from jobs.core.run_code import (
    CODE_ROOT,
    FOLDER,
    CommandCode,
    archive_of,
    has_module,
    modules_in,
    paths_in,
    script_words,
)

_PACKAGES = ("disttrain", "jobs", "sweeps", "analysis")
_TOP_LEVEL_FILES = ("submit.py", "pyproject.toml")
_OF_THIS_PACKAGE = {*_PACKAGES, *_TOP_LEVEL_FILES}
_NEVER_RUN = ("tests", "docs", "benchmarks")
_MAX_FILE_BYTES = 1024 * 1024
_MAX_FILES = 10_000
_MAX_BYTES = 64 * 1024 * 1024
_SOURCES = (".py", ".yaml", ".yml", ".toml")
_PART = re.compile(r"\.(tar|\d+)$")
"""End of the name of a copy's archive, or of the folder into which a job, by its id, unpacks it."""
_WITHOUT_GIT = {"git_commit": None, "git_dirty": None, "git_diff": None}


@dataclass(frozen=True)
class CodeContent:
    """The files of a copy, in memory."""

    kind: Literal["git", "files"]
    files: Mapping[str, bytes]
    """Contents by path below the root, with `/`."""

    @functools.cached_property
    def name(self) -> str:
        """Hash of all files: 16 hex digits."""
        return _hash(self.files)

    @functools.cached_property
    def command_hash(self) -> str:
        """Hash of the Python, YAML and TOML files of a script of one's own: `c-` and 12 hex digits."""
        sources = {name: data for name, data in self.files.items() if name.endswith(_SOURCES)}
        return f"c-{_hash(sources)[:12]}"

    def record(self, source: Path = CODE_ROOT) -> dict[str, Any]:
        """The `records.Code` of a copy of this package, made from `source`."""
        path = f"{FOLDER}/{self.name}"
        hash_ = hash_sources(self.files)
        is_installed = source.name in ("site-packages", "dist-packages")
        return {
            "hash": hash_,
            "snapshot": self.kind,
            "path": path,
            "source": None if is_installed else str(source),
        }


def read_code(source: Path = CODE_ROOT) -> CodeContent:
    """The content that a copy of the package at `source` would have; writes nothing."""
    tracked = tracked_files(source)
    names = {name for name in tracked or _TOP_LEVEL_FILES if _belongs(source, name)}
    for package in _PACKAGES:
        found = (f"{package}/{name}" for name in _walk(source / package))
        names |= {name for name in found if tracked is None or name.endswith((".py", ".yaml"))}
    content = {}
    for name in sorted(names):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # deleted, or a submodule
            content[name] = (source / name).read_bytes()
    return CodeContent("files" if tracked is None else "git", content)


def _belongs(source: Path, name: str) -> bool:
    first = name.split("/")[0]
    if first in _NEVER_RUN or first.startswith("."):
        return False
    path = source / name
    return path.is_file() and (first in _PACKAGES or path.stat().st_size <= _MAX_FILE_BYTES)


def _walk(source: Path) -> Iterator[str]:
    """Paths below a folder, without hidden files, Python's caches and virtual environments."""
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


def with_project(content: CodeContent, configs: Iterable[Mapping[str, Any]], root: Path) -> CodeContent:
    """The content, and the files of the working directory if a config names a module there.

    Files below names of this package are left out. `root` is the runs folder. Raises `ConfigError` as
    `read_source`.
    """
    here = Path.cwd()
    modules = {module for config in configs for module in modules_in(config)}
    if here.is_relative_to(CODE_ROOT) or not any(has_module(here, module) for module in modules):
        return content
    files = read_source(here, root).files
    own = {name: data for name, data in files.items() if name.split("/")[0] not in _OF_THIS_PACKAGE}
    return CodeContent(content.kind, {**own, **content.files})


def script_file(command: Sequence[str], folder: Path) -> Path | None:
    """The file of the script or module of a command in `folder`; None for an installed module or executable.

    Raises `ConfigError` for a script that does not exist.
    """
    script = script_words(command)
    if len(script) < 2:
        path = folder.joinpath(*script)
        if script and not path.is_file():
            raise ConfigError(f"command: no file {script[0]!r} in {folder}")
        return path if script else None
    base = folder.joinpath(*script[1].split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__main__.py") if path.is_file()), None)


def find_source(command: Sequence[str], folder: Path) -> Path | None:
    """The folder to copy: that of the git repository, else of the script, or of a module `folder` itself.

    None for an installed module. Raises `ConfigError` as `script_file`, and for a script at the top of a
    repository that git ignores.
    """
    script = script_file(command, folder)
    if script is None:
        return None
    script = script.resolve()
    top = run_git(script.parent, "rev-parse", "--show-toplevel")
    if top is not None:
        repository = Path(top.rstrip("\n"))
        if run_git(script.parent, "check-ignore", str(script)) is None:
            return repository
        if repository == script.parent:
            raise ConfigError(
                f"command: git ignores {script.name}, so a copy of {repository} lacks it; "
                "move it to a folder of its own, or take it out of .gitignore"
            )
    return folder.resolve() if command[0] == "-m" else script.parent


def read_source(source: Path, root: Path) -> CodeContent:
    """The content of a copy of `source`; `root` is the runs folder. Raises `ConfigError` above the limits."""
    listed = _listed_by_git(source) if (source / ".git").exists() else None  # a folder that git ignores
    runs = f"{os.path.relpath(root.resolve(), source.resolve())}/"
    files: dict[str, bytes] = {}
    total = 0
    for name in _walk(source) if listed is None else listed:
        path = source / name
        if name.startswith(runs) or not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            continue
        files[name] = path.read_bytes()
        total += len(files[name])
        if len(files) > _MAX_FILES or total > _MAX_BYTES:
            raise ConfigError(
                f"{source} holds over {_MAX_FILES} files, or {_MAX_BYTES >> 20} MiB of files up to 1 MiB, "
                "to copy; move the code to a folder of its own or into a git repository"
            )
    return CodeContent("files" if listed is None else "git", files)


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


class CommandReader:
    """Reads the code of commands, each folder once. Writes below the runs folder `root`, in `write` alone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._source = functools.cache(find_source)
        self._sources: dict[Path, tuple[CodeContent, Mapping[str, Any]]] = {}

    def read(self, command: Sequence[str], folder: Path) -> CommandCode:
        """The `records.CommandCode` of a command that is started in `folder`. Raises `ConfigError`."""
        source = self._source(script_words(command), folder)
        if source is None:
            return {"folder": str(folder), "source": None, "path": None, "hash": None, **_WITHOUT_GIT}
        if source not in self._sources:
            content = read_source(source, self._root)
            self._sources[source] = content, git_state(source, ".") if content.kind == "git" else _WITHOUT_GIT
        content, git = self._sources[source]
        code = {"source": str(source), "path": f"{FOLDER}/{content.name}", "hash": content.command_hash}
        return {"folder": str(folder), **code, **git}

    def write(self) -> None:
        """Copy all code that was read. Call it inside `hold_copies`. Raises `ConfigError`."""
        for content, _ in self._sources.values():
            write_copy(self._root, content)


@functools.cache
def hash_of_source(source: str, root: Path) -> str | None:
    """Hash of the files in `source` at the first call of this process; None if they cannot be read."""
    try:
        return read_source(Path(source), root).command_hash
    except (OSError, ConfigError):
        return None


def copy_code(
    root: Path,
    source: Path = CODE_ROOT,
    progress: Progress = without_progress,
    configs: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Copy the package, `with_project` for runs of `configs`, below the runs folder `root`, unless the copy
    exists; its `records.Code`.

    Call it inside `hold_copies`, together with recording which run needs it. Raises `ConfigError` when the
    copy cannot be written.
    """
    content = with_project(read_code(source), configs, root)
    write_copy(root, content, progress)
    return content.record(source)


def write_copy(root: Path, content: CodeContent, progress: Progress = without_progress) -> None:
    """Write archive and folder of a copy, each unless it exists. Raises `ConfigError` if it cannot."""
    path = root / FOLDER / content.name
    try:
        if path.exists() and not _is_unaltered(path):
            damaged = path.with_name(f"{path.name}.damaged-{os.urandom(4).hex()}")
            os.rename(path, damaged)
            print(
                f"warning: {path} was altered; it is written again, the altered copy is now {damaged.name}",
                file=sys.stderr,
            )
        if not path.exists() or not archive_of(path).exists():
            _write(content, path, progress)
    except OSError as error:
        raise ConfigError(f"cannot keep a copy of the code in {path.parent}: {error.strerror}") from None


def _write(content: CodeContent, path: Path, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(archive_of(path), _packed(content))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        for name, data in progress(content.files.items(), "copying the code", len(content.files)):
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(_mode(data))
        os.rename(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not path.exists():  # else another process has written it
            raise


def _packed(content: CodeContent) -> bytes:
    """The archive: equal bytes for equal content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in sorted(content.files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), _mode(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _mode(data: bytes) -> int:
    """Permissions of a file: a copy of a script with `#!`, or of a program, can be executed."""
    return 0o555 if data.startswith((b"#!", b"\x7fELF")) else 0o444


def _is_unaltered(path: Path) -> bool:
    """Whether the content of a copy matches the hash in its name, apart from Python's caches."""
    files = {
        Path(place, name).relative_to(path).as_posix(): Path(place, name).read_bytes()
        for place, _, names in os.walk(path)
        for name in names
        if not place.endswith("__pycache__")
    }
    return _hash(files) == path.name


def _hash(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def hold_copies(root: Path) -> contextlib.AbstractContextManager[int]:
    """Hold a shared lock: within the block no process removes a copy."""
    return locked(root / FOLDER / ".lock", fcntl.LOCK_SH)


@contextlib.contextmanager
def unreferenced_copies(root: Path, runs: Callable[[], Iterable[RunDir]]) -> Iterator[list[Path]]:
    """Folders and archives that no run refers to; within the block no process makes one.

    `runs` lists all runs. It is called under an exclusive lock, when no new run can appear. The list is empty
    during a submission.
    """
    folder = root / FOLDER
    if not folder.is_dir():
        yield []
        return
    try:
        with locked(folder / ".lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            used = {path for run in runs() for path in paths_in(read_json_or_none(run.run_json) or {})}
            names = [name for name in sorted(os.listdir(folder)) if name != ".lock"]
            yield [folder / name for name in names if f"{FOLDER}/{_PART.sub('', name)}" not in used]
    except BlockingIOError:
        yield []
