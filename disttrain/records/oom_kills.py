"""Count the processes that the OOM killer ended in this process's control group. Standard library only.

Ranks and their children run in the control group of their agent, so the agent's counter includes them,
whichever group's memory limit was reached.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")
"""Folder of `proc` and `sys`."""


def memory_group(root: Path) -> tuple[Path, str] | None:
    """(mount point, path below it) of the control group that limits this process's memory; the mount point of
    version 1 is named `memory`."""
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return None
    for version, mount in ((r"\d+:(?:[^:]*,)?memory(?:,[^:]*)?", "cgroup/memory"), ("0:", "cgroup")):
        if found := re.search(rf"^{version}:/(.*)$", groups, re.MULTILINE):
            return root / "sys/fs" / mount, found[1]
    return None


def count_oom_kills(root: Path | None = None) -> int | None:
    """Number of OOM kills since the control group was created; None without a counter of the kernel."""
    group = memory_group(ROOT if root is None else root)
    if group is None:
        return None
    top, path = group
    files = [top / path / "memory.events"]
    if top.name == "memory":  # version 1; in a container the group itself may be mounted as the root
        files = [top / path / "memory.oom_control", top / "memory.oom_control"]
    return next((count for count in map(_count, files) if count is not None), None)


def _count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
