"""Snapshots of the code: each run starts the code it was submitted with, also after later edits.

    runs/.code/<hash>/     one copy per content, shared by all sweeps that use it

In a git checkout a snapshot holds the tracked files with their current content, elsewhere the files of the
packages; in both cases every Python and YAML file of the packages. Tests and documents are left out, as are
large files beside the packages. The files are read-only. The folders are writable, so that they can be
deleted. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash, hash_sources, tracked_files
from disttrain.records.json_files import read_json_or_none
from disttrain.records.regular_file import open_descriptor
from disttrain.records.run_directory import RunDir
from jobs.core import file_lock
from jobs.core.progress import Progress, without_progress

SNAPSHOTS_FOLDER = ".code"
CODE_ROOT = Path(__file__).resolve().parents[2]
"""Root of the running code: a checkout, an installation, or a snapshot."""
_PACKAGES = ("disttrain", "jobs", "sweeps", "analysis")
_TOP_LEVEL_FILES = ("submit.py", "pyproject.toml")
_NEVER_RUN = ("tests", "docs", "benchmarks")
_MAX_OTHER_BYTES = 1024 * 1024
_SOURCES = (".py", ".yaml", ".yml", ".toml")
_WITH_PLUG_INS = ("model", "data", "telemetry")
_PLUG_IN = re.compile(r'"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*"')


CommandCode = dict[str, Any]
"""Plain data of `records.CommandCode`."""


@dataclass(frozen=True)
class CodeContent:
    """The files of a snapshot, in memory."""

    kind: Literal["git", "files"]
    files: Mapping[str, bytes]
    """Contents by path below the root, with `/`."""

    @functools.cached_property
    def name(self) -> str:
        """Hash of all files: 16 hex digits. The name of the snapshot's folder."""
        return _hash(self.files)

    @functools.cached_property
    def code_hash(self) -> str:
        """Hash of the sources alone (`disttrain.records.collect_provenance.code_hash`)."""
        return hash_sources(self.files)

    @functools.cached_property
    def command_hash(self) -> str:
        """Hash of the Python, YAML and TOML files of a script of one's own: `c-` and 12 hex digits."""
        sources = {name: data for name, data in self.files.items() if name.endswith(_SOURCES)}
        return f"c-{_hash(sources)[:12]}"


def read_code(source: Path = CODE_ROOT) -> CodeContent:
    """The content that a snapshot of the code at `source` would have; writes nothing."""
    tracked = tracked_files(source)
    names = {name for name in tracked or _TOP_LEVEL_FILES if _belongs(source, name)}
    names.update(_walk(source, None if tracked is None else (".py", ".yaml")))
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
    return path.is_file() and (first in _PACKAGES or path.stat().st_size <= _MAX_OTHER_BYTES)


def _walk(source: Path, suffixes: tuple[str, ...] | None) -> Iterator[str]:
    """Files of the packages with these suffixes; with None all files except Python's caches."""
    for package in _PACKAGES:
        for folder, folders, names in os.walk(source / package):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                if not name.endswith(".pyc") and (suffixes is None or name.endswith(suffixes)):
                    yield Path(folder, name).relative_to(source).as_posix()


def _hash(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def take_snapshot(
    root: Path, source: Path = CODE_ROOT, progress: Progress = without_progress
) -> dict[str, Any]:
    """Write a snapshot of the code below the runs folder `root`, unless it exists; its `records.Code`.

    Call it inside `hold_snapshots`, together with recording which run needs it. Raises `ConfigError` when the
    snapshot cannot be written.
    """
    content = read_code(source)
    write_snapshot(root, content, progress)
    return code_record(content, source)


def write_snapshot(root: Path, content: CodeContent, progress: Progress = without_progress) -> None:
    """Write a snapshot with this content below the runs folder `root`, unless it exists.

    Raises `ConfigError` when it cannot be written.
    """
    path = snapshot_path(root, content)
    try:
        if path.exists() and not _is_unaltered(path):
            damaged = path.with_name(f"{path.name}.damaged-{os.urandom(4).hex()}")
            os.rename(path, damaged)
            print(
                f"warning: {path} was altered; it is written again, the altered copy is now {damaged.name}",
                file=sys.stderr,
            )
        if not path.exists():
            _write(content, path, progress)
    except OSError as error:
        raise ConfigError(f"cannot keep a copy of the code in {path.parent}: {error.strerror}") from None


def code_record(content: CodeContent, source: Path = CODE_ROOT) -> dict[str, Any]:
    """The `records.Code` of a snapshot with this content."""
    return {
        "hash": content.code_hash,
        "snapshot": content.kind,
        "path": f"{SNAPSHOTS_FOLDER}/{content.name}",
        "source": str(source),
    }


def snapshot_path(root: Path, content: CodeContent) -> Path:
    """The folder of a snapshot with this content."""
    return root / SNAPSHOTS_FOLDER / content.name


def _write(content: CodeContent, path: Path, progress: Progress) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        for name, data in progress(content.files.items(), "copying the code", len(content.files)):
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o444)
        os.rename(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not path.exists():  # else another process has written it
            raise


def _is_unaltered(path: Path) -> bool:
    """Whether the content of a snapshot matches the hash in its name, apart from Python's caches."""
    files = {
        Path(place, name).relative_to(path).as_posix(): Path(place, name).read_bytes()
        for place, _, names in os.walk(path)
        for name in names
        if not place.endswith("__pycache__")
    }
    return _hash(files) == path.name


def code_of_run(run: RunDir, record: Mapping[str, Any]) -> Path:
    """Root of the code of a run, by its `run.json`; the running code if `run.json` names none."""
    path = _path_in(record)
    return CODE_ROOT if path is None else (run.path.parent.parent / path).absolute()


def snapshots_of_run(run: RunDir, record: Mapping[str, Any]) -> list[Path]:
    """The snapshots that a run refers to in its `run.json`: of this code, and of its command."""
    return [(run.path.parent.parent / path).absolute() for path in _paths_in(record) if path]


def source_of_run(record: Mapping[str, Any]) -> str | None:
    """The folder from which the code of a run was copied, by its `run.json`."""
    source: str | None = _code(record).get("source")
    return source


def _path_in(record: Mapping[str, Any]) -> str | None:
    path: str | None = _code(record).get("path")
    return path


def _paths_in(record: Mapping[str, Any]) -> list[str | None]:
    """Paths of the snapshots that a run refers to: of this code, and of its command."""
    command = record.get("provenance", {}).get("command") or {}
    return [_path_in(record), command.get("path")]


def _code(record: Mapping[str, Any]) -> Mapping[str, Any]:
    code: Mapping[str, Any] = record.get("provenance", {}).get("code", {})  # a run.json made by hand has none
    return code


def snapshot_problem(run: RunDir, record: Mapping[str, Any]) -> str | None:
    """The difference between the running code and the run's snapshot, in one line; None if there is none.

    A run without a snapshot in its `run.json` accepts any code.
    """
    if _path_in(record) is None:
        return None
    wanted = code_of_run(run, record)
    again = "`submit.py resume` starts the run with the current code"
    if not (wanted / "jobs").is_dir():
        return f"the code snapshot of the run does not exist ({wanted}); {again}"
    if wanted.resolve() != CODE_ROOT:
        return f"the code in {CODE_ROOT} runs, and the run was submitted with the code in {wanted}; {again}"
    recorded, found = record["provenance"]["code"]["hash"], code_hash()
    if recorded != found:
        return f"the code snapshot of the run was changed ({found}, not {recorded}, in {wanted}); {again}"
    return None


def missing_modules(config: Mapping[str, Any], code: Path) -> list[str]:
    """Modules that a config names as `package.module:callable` and that the snapshot at `code` lacks."""
    text = json.dumps([config.get(section) for section in _WITH_PLUG_INS])
    packages = {module: module.partition(".")[0] for module in _PLUG_IN.findall(text)}
    return sorted(
        module
        for module, package in packages.items()
        if not ((code / package).is_dir() or (code / f"{package}.py").is_file())
    )


@contextlib.contextmanager
def hold_snapshots(root: Path) -> Iterator[None]:
    """Hold a shared lock: within the block no process removes a snapshot."""
    with _lock(root, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def unreferenced_snapshots(root: Path, runs: Callable[[], Iterable[RunDir]]) -> Iterator[list[Path]]:
    """Snapshots that no run refers to; within the block no process takes one. Empty during a submission.

    `runs` lists all runs. It is called under an exclusive lock, when no new run can appear.
    """
    if not (root / SNAPSHOTS_FOLDER).is_dir():
        yield []
        return
    try:
        with _lock(root, fcntl.LOCK_EX | fcntl.LOCK_NB):
            used = {path for run in runs() for path in _paths_in(read_json_or_none(run.run_json) or {})}
            names = sorted(os.listdir(root / SNAPSHOTS_FOLDER))
            yield [
                root / SNAPSHOTS_FOLDER / name
                for name in names
                if name != ".lock" and f"{SNAPSHOTS_FOLDER}/{name}" not in used
            ]
    except BlockingIOError:
        yield []


@contextlib.contextmanager
def _lock(root: Path, kind: int) -> Iterator[None]:
    try:
        (root / SNAPSHOTS_FOLDER).mkdir(parents=True, exist_ok=True)
        file = open_descriptor(root / SNAPSHOTS_FOLDER / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        problem = error.strerror or error
        raise ConfigError(f"cannot write to {str(root / SNAPSHOTS_FOLDER)!r}: {problem}") from None
    try:
        file_lock.lock(file, kind, root / SNAPSHOTS_FOLDER / ".lock")
        yield
    finally:
        os.close(file)
