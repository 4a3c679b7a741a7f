"""Find a cluster: its folder below `/run`, and its processes by their command lines in `/proc`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from jobs import PROGRAM
from jobs.minicluster.config import ClusterFolder

_ROOT = Path("/run")
_PREFIX = "disttrain-"
_INIT_MODULE = "jobs.minicluster.namespace_init"
_REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

HEAD = "head"
FOLDER_MODE = 0o711
"""Mode of a cluster's folder. Users reach files in it by name; a user who could read it could lock it."""


def folder_of(name: str) -> ClusterFolder:
    return ClusterFolder(_ROOT / f"{_PREFIX}{name}")


def cluster_names() -> list[str]:
    """Names of the clusters with a folder: up, coming up, or left over from a crash."""
    return sorted(path.name.removeprefix(_PREFIX) for path in _ROOT.glob(f"{_PREFIX}*") if path.is_dir())


def resolve_name(name: str | None) -> str:
    """The named cluster, or the only one. Raises `ConfigError` for none or several."""
    there = cluster_names()
    if name is None and len(there) == 1:
        return there[0]
    if name in there:
        return str(name)
    known = f"clusters: {', '.join(there)}" if there else f"create one: {PROGRAM} cluster up"
    if name is None:
        raise ConfigError(
            f"--name is needed to choose a cluster; {known}" if there else f"no cluster; {known}"
        )
    raise ConfigError(f"no cluster {name!r}{nearest(name, there)}; {known}")


def init_command(folder: ClusterFolder, host: str) -> list[str]:
    """Command that starts the namespace init of the head (`head`) or of a node (its number).

    `unshare` stays as the parent of the init, in all of the new namespaces except the PID namespace.
    """
    flags = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *flags, sys.executable, "-m", _INIT_MODULE, str(folder.path), host]


def init_environment(path: str) -> dict[str, str]:
    """Environment of a cluster's daemons, without the user's variables."""
    return {"PATH": path, "PYTHONPATH": str(_REPOSITORY_ROOT), "HOME": "/root", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class NamespaceProcess:
    """A process that keeps namespaces of a cluster alive: a namespace init, or its parent `unshare`."""

    pid: int
    host: str
    """`head`, or a node's number."""
    is_init: bool
    """False for `unshare`."""


def namespace_processes(folder: ClusterFolder) -> list[NamespaceProcess]:
    """The live processes that hold a cluster's namespaces, found by command line, not by pid file.

    Processes of other users are ignored: any user may start a process with such a command line, in namespaces
    of their own, and root enters the namespaces of the found processes.
    """
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            is_of_cluster = len(words) > 3 and words[-3] == _INIT_MODULE and words[-2] == str(folder.path)
            if is_of_cluster and _is_all_root(int(entry)):
                found.append(NamespaceProcess(int(entry), words[-1], words[0] != "unshare"))
    return found


def _is_all_root(pid: int) -> bool:
    """Whether the real, effective, saved and file-system user ids of a process are all 0.

    The owner of `/proc/<pid>` is not enough: it is root as well for a set-user-id program of another user.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    ids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    return set(ids) == {"0"}


def init_pid(folder: ClusterFolder, host: str) -> int | None:
    """Pid of the namespace init of the head (`head`) or of a node (its number); None if it does not run."""
    processes = namespace_processes(folder)
    return next((process.pid for process in processes if process.host == host and process.is_init), None)


def init_log(folder: ClusterFolder, host: str) -> Path:
    """Log of the namespace init of the head (`head`) or of a node (its number)."""
    return folder.logs / f"namespace_init-{host}.log"


def nsenter_prefix(pid: int) -> list[str]:
    """Command prefix that runs a command in the namespaces of process `pid`."""
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--pid", "--"]


@contextlib.contextmanager
def locked(folder: ClusterFolder, *, create: bool = False) -> Iterator[None]:
    """Lock a cluster's folder against a concurrent `up` or `down`.

    The kernel releases the lock when its process ends.

    Raises `ConfigError` when another process holds the lock, or the folder was removed.
    """
    while True:
        if create:
            with contextlib.suppress(FileExistsError):
                folder.path.mkdir(mode=FOLDER_MODE)
        try:
            handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if create:
                continue  # removed by `down` since the mkdir
            raise ConfigError(f"{folder.path} was removed: the cluster is down") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another process is bringing up or taking down {folder.path}") from None
            if not _is_same_folder(folder.path, handle):
                continue
            yield
            return
        finally:
            os.close(handle)


def _is_same_folder(path: Path, handle: int) -> bool:
    try:
        current, held = os.stat(path), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) == (held.st_dev, held.st_ino)
