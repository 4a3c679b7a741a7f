"""A control group with a memory limit, for tests of the OOM killer."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
"""Folder of `proc` and `sys`."""


class NoMemoryGroup(RuntimeError):
    """No group can be made; the message has the reason, and the remedy if there is one."""


def make_memory_group(limit_bytes: int, root: Path = ROOT) -> Path:
    """A new, empty group of this machine that may use so much memory. Raises `NoMemoryGroup`."""
    groups = (root / "proc/self/cgroup").read_text()
    first = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", groups, re.MULTILINE)
    top = root / "sys/fs/cgroup"
    parent, limit = (top / "memory" / first[1], "memory.limit_in_bytes") if first else (top, "memory.max")
    if not parent.exists():  # in a container of version 1 the group itself may be mounted as the root
        parent = top / "memory"
    if not first:
        _give_memory_to_children(parent)
    folder = parent / f"disttrain-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise NoMemoryGroup(
            f"{error.filename}: {error.strerror}; root and a writable {top} are needed"
        ) from None
    return folder


def _give_memory_to_children(parent: Path) -> None:
    """Have the children of a group of version 2 limit memory. Raises `NoMemoryGroup`.

    The kernel refuses it for a group that has processes itself, unless it is the root of the machine: also
    in a privileged container, whose processes are in the group that is mounted as the root.
    """
    control = parent / "cgroup.subtree_control"
    try:
        if "memory" in control.read_text().split():
            return
        control.write_text("+memory")
    except OSError as error:
        raise NoMemoryGroup(
            f"{control}: {error.strerror}: groups below {parent} have no memory limit; as root, move its "
            f"processes to a child first: mkdir {parent}/init; for p in $(cat {parent}/cgroup.procs); do "
            f"echo $p > {parent}/init/cgroup.procs; done; echo +memory > {control}"
        ) from None
