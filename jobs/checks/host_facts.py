"""Facts about one host and about the runs folder as this host has it.

`python -m jobs.checks.host_facts RUNS_FOLDER [SHARED_FOLDER]` prints them as one JSON document: a child
process of the doctor, which a file system that hangs cannot block, and with `--job` a job on a node.
`SHARED_FOLDER` is then a folder that the submitting host has made, with one locked file. Standard library
only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from jobs.checks.rank_python import find
from jobs.core.child_process import output
from jobs.core.run_code import CODE_ROOT
from jobs.fabric.software import effective_limit, limit_bytes

PYTHON_VARIABLE = "DISTTRAIN_DOCTOR_PYTHON"
"""A `job.python` to examine."""
PACKAGES = ("torch", "pydantic", "PyYAML", "submitit")
TIMEOUT_S = 30.0
_MARK, _LOCKED = "mark", "locked"
"""Files in the shared folder."""
_SEEN_WITHIN_S = 10.0
"""A network file system may show a new file after the lifetime of its cached folder, 3 s and more on NFS."""
_SHM = Path("/dev/shm")


class ProbeError(Exception):
    """The probe gave no facts; the message is one line."""


class ProbeTimeout(ProbeError):
    """The probe did not end within its time limit."""


@dataclass(frozen=True)
class HostFacts:
    """One host, and the runs folder as it has it. Sizes are bytes; None: unlimited, unknown or missing."""

    host: str
    time: float
    """Wall clock, in seconds since the epoch."""
    python: str
    """The interpreter, without symbolic links."""
    python_version: str
    packages: Mapping[str, str | None]
    """Version of each of `PACKAGES`."""
    locked_memory: int | None
    """Soft limit (`ulimit -l`) where it has effect (`jobs.fabric.software`)."""
    open_files: int | None
    """Hard limit (`ulimit -Hn`)."""
    shared_memory: int | None
    """Size of `/dev/shm`."""
    remove_ipc: bool
    """RemoveIPC of systemd-logind, where its configuration names it."""
    folder: str
    """The runs folder."""
    tested: str
    """The runs folder, or the nearest folder above that exists."""
    file_system: str
    mount_point: str
    mount_options: Sequence[str]
    """Options of the mount and of the file system."""
    free: int
    """Bytes free for this user."""
    problems: Mapping[str, str]
    """Error by operation: write, lock, exclusive, rename, link, sync."""
    sync_s: float
    """Seconds to write 4 KiB and flush them (`fsync`)."""
    clock_offset_s: float
    """Time stamp of a new file minus this host's clock."""
    rank_python: str | None = None
    """Why the Python of `PYTHON_VARIABLE`, by default this one, cannot start ranks by torchrun."""
    shares_folder: bool | None = None
    """Whether this host sees the submitting host's files in the runs folder; None: not examined."""
    shares_locks: bool = True
    """Whether the submitting host's lock holds here."""

    @property
    def mount(self) -> str:
        return f"{self.file_system} on {self.mount_point}"

    @property
    def runs(self) -> str:
        """The tested folder and its file system."""
        return f"{self.tested} ({self.mount})"


def host_facts(runs: Path, shared: Path | None = None) -> HostFacts:
    """Examine this host; write, lock, rename, link and flush files in a temporary folder, then removed."""
    memory_lock = effective_limit(*(_read(f"/proc/self/{name}") for name in ("limits", "status", "uid_map")))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    tested = _nearest(runs)
    kind, point, options = mount_of(tested.resolve(), _read("/proc/self/mountinfo") or "")
    problems: dict[str, str] = {}
    sync_s = offset_s = 0.0
    with _recorded(problems, "write"), tempfile.TemporaryDirectory(prefix=".doctor-", dir=tested) as name:
        sync_s, offset_s = _operations(Path(name), problems)
    seen, holds = _sharing(shared) if shared else (None, True)
    return HostFacts(
        host=platform.node(),
        time=time.time(),
        python=str(Path(sys.executable).resolve()),
        python_version=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        locked_memory=limit_bytes(memory_lock),
        open_files=None if files == resource.RLIM_INFINITY else files,
        shared_memory=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
        remove_ipc=_removes_ipc(),
        folder=str(runs.absolute()),
        tested=str(tested),
        file_system=kind,
        mount_point=point,
        mount_options=options,
        free=shutil.disk_usage(tested).free,
        problems=problems,
        sync_s=sync_s,
        clock_offset_s=offset_s,
        rank_python=find({"python": os.environ.get(PYTHON_VARIABLE)}, os.environ, is_trainer=False).problem,
        shares_folder=seen,
        shares_locks=holds,
    )


def _nearest(runs: Path) -> Path:
    absolute = runs.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def mount_of(path: Path, mountinfo: str) -> tuple[str, str, list[str]]:
    """File system, mount point and options of the mount that holds an absolute path.

    Of several at one mount point, the last hides the others. `mountinfo`: `/proc/self/mountinfo` (proc(5)).
    """
    mount: tuple[str, str, list[str]] = ("unknown file system", "", [])
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split()
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])
        if PurePosixPath(path).is_relative_to(point) and len(point) >= len(mount[1]):
            mount = (rest[0], point, ",".join([fields[5], *rest[2:3]]).split(","))
    return mount


def _operations(folder: Path, problems: dict[str, str]) -> tuple[float, float]:
    """Seconds of a flush, and the offset of the file server's clock."""
    path, before, start = folder / "file", time.time(), time.perf_counter()
    with open(path, "wb") as file:
        file.write(b"\0" * 4096)
        file.flush()
        with _recorded(problems, "sync"):
            os.fsync(file.fileno())
        sync_s = time.perf_counter() - start
        with _recorded(problems, "lock"):
            fcntl.flock(file, fcntl.LOCK_EX)
            with open(path, "rb+") as other, contextlib.suppress(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                problems["exclusive"] = "two open files hold the same exclusive lock"
    after, stamp = time.time(), path.stat().st_mtime
    with _recorded(problems, "link"):
        os.link(path, folder / "link")
    with _recorded(problems, "rename"):
        os.replace(path, folder / "renamed")
    return sync_s, min(0.0, stamp - before) or max(0.0, stamp - after)


@contextlib.contextmanager
def _recorded(problems: dict[str, str], operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems[operation] = error.strerror or str(error)


@contextlib.contextmanager
def locked_folder(runs: Path) -> Iterator[Path]:
    """A temporary folder in `runs` with a locked file, for another host. Raises `OSError`."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=_nearest(runs)) as name:
        folder = Path(name)
        (folder / _MARK).touch()
        with open(folder / _LOCKED, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield folder


def _sharing(folder: Path) -> tuple[bool, bool]:
    """Whether this host sees a folder of `locked_folder`, for whose files it waits 10 s, and its lock."""
    end = time.monotonic() + _SEEN_WITHIN_S
    while not (folder / _MARK).exists():
        if time.monotonic() > end:
            return False, True
        time.sleep(0.2)
    try:
        with open(folder / _LOCKED, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # `BlockingIOError` where the lock holds
        return True, True
    return True, False


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _removes_ipc() -> bool:
    files = [Path("/etc/systemd/logind.conf"), *sorted(Path("/etc/systemd/logind.conf.d").glob("*.conf"))]
    values = re.findall(r"(?m)^\s*RemoveIPC\s*=\s*(\w+)", "\n".join(_read(str(path)) or "" for path in files))
    return bool(values) and values[-1].lower() in ("yes", "true", "on", "1")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def module_arguments(runs: Path, shared: Path | None = None) -> list[str]:
    """Arguments of Python that run this module."""
    return ["-m", "jobs.checks.host_facts", *map(str, filter(None, [runs.absolute(), shared]))]


def probe(
    command: Sequence[str], environ: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S
) -> HostFacts:
    """The facts that a command prints. Raises `ProbeError`."""
    path = os.pathsep.join([str(CODE_ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    env = {**environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    try:
        printed, errors, code = output(command, timeout_s, env), "", 0
    except OSError as error:
        raise ProbeError(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ProbeTimeout(f"no answer within {timeout_s:g} s") from None
    except subprocess.CalledProcessError as error:
        printed, errors, code = error.stdout, error.stderr, error.returncode
    for line in reversed(printed.splitlines()):  # lines of the site's prolog may come before
        with contextlib.suppress(ValueError, TypeError):
            return HostFacts(**json.loads(line))
    lines = [line for line in errors.splitlines() if line.strip()]
    raise ProbeError(lines[-1].strip() if lines else f"exit code {code} without a message")


def probe_here(runs: Path) -> HostFacts:
    """The facts of this host. Raises `ProbeError`."""
    return probe([sys.executable, *module_arguments(runs)])


if __name__ == "__main__":
    print(json.dumps(asdict(host_facts(*map(Path, sys.argv[1:])))))
