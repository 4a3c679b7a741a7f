"""Facts about one host and about the runs folder as this host has it.

`python -m jobs.schedulers.doctor.probe RUNS_FOLDER [--shared-folder FOLDER]` prints them as one JSON
document. The doctor runs this module as a child process, which a file system that hangs cannot block, and
with `--job` as a job on a node. `FOLDER` is then a folder that the submitting host has made, with one
locked file. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.fabric.memory_lock import effective_limit, limit_bytes
from jobs.schedulers.doctor.mounts import Mount, mount_of

PACKAGES = ("torch", "pydantic", "PyYAML", "submitit")
MARK, LOCKED = "mark", "locked"
"""Files in the folder of `--shared-folder`."""
_SEEN_WITHIN_S = 10.0
"""A network file system may show a new file after the lifetime of its cached folder, 3 s and more on NFS."""
_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class HostFacts:
    """One host. Sizes are bytes; None is an unlimited or an unknown value, as each field says."""

    host: str
    time: float
    """Wall clock, in seconds since the epoch."""
    python: str
    """The interpreter, without symbolic links."""
    python_version: str
    python_identity: tuple[int, float]
    """Size and modification time of the interpreter's file."""
    python_mount: Mount | None
    packages: dict[str, str | None]
    """Version of each of `PACKAGES`; None where it is missing."""
    locked_memory: int | None
    """Soft limit (`ulimit -l`); None: unlimited, or without effect (`jobs.fabric.memory_lock`)."""
    open_files: int | None
    """Hard limit (`ulimit -Hn`); None: unlimited."""
    shared_memory: int | None
    """Size of `/dev/shm`; None where it does not exist."""
    remove_ipc: bool | None
    """RemoveIPC of systemd-logind, where its configuration names it; None otherwise."""
    processors: int
    """Processors that this process may use."""
    gpus: int
    """Device files of NVIDIA GPUs."""


@dataclass(frozen=True)
class FolderFacts:
    """The runs folder. `problems` has the error of each operation that failed."""

    path: str
    tested: str
    """The runs folder, or the nearest folder above that exists."""
    mount: Mount | None
    free: int | None
    """Bytes free for this user."""
    problems: dict[str, str]
    """Error by operation: write, lock, exclusive, rename, link, sync."""
    sync_s: float | None
    """Seconds to write 4 KiB and flush them (`fsync`)."""
    clock_offset_s: float | None
    """Time stamp of a new file minus this host's clock."""


@dataclass(frozen=True)
class SharedFolderFacts:
    """Whether this host sees the files and the lock that another host made in the runs folder."""

    seen: bool
    locked: bool | None
    """Whether the other host's lock holds here; None if the file could not be opened."""


@dataclass(frozen=True)
class ProbeFacts:
    host: HostFacts
    folder: FolderFacts
    shared: SharedFolderFacts | None = None


def host_facts() -> HostFacts:
    python = Path(sys.executable).resolve()
    status = python.stat()
    memory_lock = effective_limit(*(_read(f"/proc/self/{name}") for name in ("limits", "status", "uid_map")))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return HostFacts(
        host=platform.node(),
        time=time.time(),
        python=str(python),
        python_version=platform.python_version(),
        python_identity=(status.st_size, status.st_mtime),
        python_mount=mount_of(Path(sys.prefix).resolve(), _read("/proc/self/mountinfo") or ""),
        packages={name: _version(name) for name in PACKAGES},
        locked_memory=limit_bytes(memory_lock),
        open_files=None if files == resource.RLIM_INFINITY else files,
        shared_memory=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
        remove_ipc=_remove_ipc(),
        processors=len(os.sched_getaffinity(0)),
        gpus=sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev")),
    )


def folder_facts(runs: Path) -> FolderFacts:
    """Write, lock, rename, link and flush files in a temporary folder, which is removed."""
    absolute = runs.absolute()
    tested = next(path for path in (absolute, *absolute.parents) if path.is_dir())
    problems: dict[str, str] = {}
    sync_s = offset_s = None
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=tested) as name:
            sync_s, offset_s = _operations(Path(name), problems)
    except OSError as error:
        problems.setdefault("write", _message(error))
    usage = None
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(tested).free
    mount = mount_of(tested.resolve(), _read("/proc/self/mountinfo") or "")
    return FolderFacts(str(absolute), str(tested), mount, usage, problems, sync_s, offset_s)


def _operations(folder: Path, problems: dict[str, str]) -> tuple[float | None, float | None]:
    path, before, start = folder / "file", time.time(), time.perf_counter()
    with open(path, "wb") as file:
        file.write(b"\0" * 4096)
        file.flush()
        with _recorded(problems, "sync"):
            os.fsync(file.fileno())
        sync_s = time.perf_counter() - start
        with _recorded(problems, "lock"):
            fcntl.flock(file, fcntl.LOCK_EX)
            with open(path, "rb+") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    problems["exclusive"] = "two open files hold the same exclusive lock"
                except BlockingIOError:
                    pass
    after = time.time()
    stamp = path.stat().st_mtime
    offset_s = min(0.0, stamp - before) or max(0.0, stamp - after)
    for name, operation in _renames(folder).items():
        with _recorded(problems, name):
            operation()
    return sync_s, offset_s


def _renames(folder: Path) -> dict[str, Callable[[], None]]:
    return {
        "link": lambda: os.link(folder / "file", folder / "link"),
        "rename": lambda: os.replace(folder / "file", folder / "renamed"),
    }


@contextlib.contextmanager
def _recorded(problems: dict[str, str], operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems[operation] = _message(error)


@contextlib.contextmanager
def locked_folder(runs: Path) -> Iterator[Path]:
    """A temporary folder in `runs` with a locked file, for `--shared-folder` on another host.

    Raises `OSError`.
    """
    absolute = runs.absolute()
    tested = next(path for path in (absolute, *absolute.parents) if path.is_dir())
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=tested) as name:
        folder = Path(name)
        (folder / MARK).write_text(platform.node())
        with open(folder / LOCKED, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield folder


def shared_folder_facts(folder: Path) -> SharedFolderFacts:
    """Whether this host sees a folder of `locked_folder` and its lock. Waits up to 10 s for its files."""
    end = time.monotonic() + _SEEN_WITHIN_S
    while not (folder / MARK).exists():
        if time.monotonic() > end:
            return SharedFolderFacts(seen=False, locked=None)
        time.sleep(0.2)
    try:
        with open(folder / LOCKED, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return SharedFolderFacts(seen=True, locked=True)
    except OSError:
        return SharedFolderFacts(seen=True, locked=None)
    return SharedFolderFacts(seen=True, locked=False)


def parsed(document: dict[str, Any]) -> ProbeFacts:
    """The facts in a document that this module printed. Raises `KeyError` or `TypeError` for another one."""

    def mount(fields: dict[str, str] | None) -> Mount | None:
        return None if fields is None else Mount(**fields)

    host, folder, shared = document["host"], document["folder"], document["shared"]
    identity = tuple(host["python_identity"])
    return ProbeFacts(
        HostFacts(**host | {"python_mount": mount(host["python_mount"]), "python_identity": identity}),
        FolderFacts(**folder | {"mount": mount(folder["mount"])}),
        None if shared is None else SharedFolderFacts(**shared),
    )


def as_json(facts: ProbeFacts | None) -> dict[str, Any]:
    """The keys `host` and `runs` of a doctor's facts; null where the probe failed."""
    if facts is None:
        return {"host": None, "runs": None}
    host, folder = facts.host, facts.folder
    return {
        "host": {"name": host.host, "python": host.python, "packages": host.packages},
        "runs": {"path": folder.path, "file_system": str(folder.mount or "unknown")},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _remove_ipc() -> bool | None:
    files = [Path("/etc/systemd/logind.conf"), *sorted(Path("/etc/systemd/logind.conf.d").glob("*.conf"))]
    found = None
    for path in files:
        for value in re.findall(r"(?m)^\s*RemoveIPC\s*=\s*(\w+)", _read(str(path)) or ""):
            found = value.lower() in ("yes", "true", "on", "1")
    return found


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _message(error: OSError) -> str:
    return error.strerror or str(error)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--shared-folder", type=Path, dest="shared")
    given = parser.parse_args(arguments)
    shared = None if given.shared is None else shared_folder_facts(given.shared)
    print(json.dumps(asdict(ProbeFacts(host_facts(), folder_facts(given.runs), shared))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
