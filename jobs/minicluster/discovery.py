"""Where a cluster is found: its folder below `/run`, and its processes, by their command lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from jobs.minicluster.config import Folder

_ROOT = Path("/run")
_PREFIX = "disttrain-"
_KEEPER = "jobs.minicluster.namespace_init"
_CODE_ROOT = Path(__file__).resolve().parents[2]

HEAD = "head"


def folder_of(name: str) -> Folder:
    return Folder(_ROOT / f"{_PREFIX}{name}")


def names() -> list[str]:
    """The clusters that have a folder here: up, coming up, or left over from a crash."""
    return sorted(path.name.removeprefix(_PREFIX) for path in _ROOT.glob(f"{_PREFIX}*") if path.is_dir())


def one(name: str | None) -> str:
    """The cluster that is meant: the named one, or the only one. Raises `ConfigError`."""
    there = names()
    if name is None and len(there) == 1:
        return there[0]
    if name in there:
        return str(name)
    known = f"there are: {', '.join(there)}" if there else "there is none: python submit.py cluster up"
    if name is None:
        raise ConfigError(f"say which cluster with --name; {known}" if there else f"no cluster; {known}")
    raise ConfigError(f"no cluster {name!r}{nearest(name, there)}; {known}")


def keeper_command(folder: Folder, who: str) -> list[str]:
    """What starts the head's or a node's first process, in namespaces that end with it.

    `unshare` stays as its parent, in all of the new namespaces but that of the processes.
    """
    flags = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *flags, sys.executable, "-m", _KEEPER, str(folder.path), who]


def keeper_environment(path: str) -> dict[str, str]:
    """The environment of a cluster's daemons: nothing of the user's."""
    return {"PATH": path, "PYTHONPATH": str(_CODE_ROOT), "HOME": "/root", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Keeper:
    """A process that holds namespaces of a cluster: `unshare`, or the first process within."""

    pid: int
    who: str
    """`head`, or a node's number."""
    is_first: bool
    """Whether it is the first process within; `unshare` is its parent."""


def keepers(folder: Folder) -> list[Keeper]:
    """The live ones of this cluster. Found by command line: nothing need have been written down."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if words[-3:-1] == [_KEEPER, str(folder.path)]:
                found.append(Keeper(int(entry), words[-1], words[0] != "unshare"))
    return found


def first_process(folder: Folder, who: str) -> int | None:
    """The first process of the head's namespaces (`head`), or of a node's (its number)."""
    return next((keeper.pid for keeper in keepers(folder) if keeper.who == who and keeper.is_first), None)


def enter(first_process: int) -> list[str]:
    """The command prefix that runs what follows in the namespaces of that process."""
    return ["nsenter", f"--target={first_process}", "--net", "--uts", "--mount", "--pid", "--"]


@contextlib.contextmanager
def locked(folder: Folder, *, create: bool = False) -> Iterator[None]:
    """Hold a cluster's folder against other `up`s and `down`s. The kernel drops the lock with its holder."""
    while True:
        if create:
            with contextlib.suppress(FileExistsError):
                folder.path.mkdir(mode=0o755)
        try:
            handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if create:
                continue  # taken down between the two lines above
            raise ConfigError(f"no cluster in {folder.path} any more") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{folder.path} is being brought up or taken down at this moment") from None
            if not _is_still(folder.path, handle):
                continue
            yield
            return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    try:
        there, held = os.stat(path), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
