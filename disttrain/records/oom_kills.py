"""Count the processes that the OOM killer ended in this process's control group. Standard library only.

Ranks and their children run in the control group of their agent, so the agent's counter includes them,
whichever group's memory limit was reached.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")
"""Folder of `proc` and `sys`."""


def count_oom_kills(root: Path | None = None) -> int | None:
    """Number of OOM kills since the control group was created; None without a counter of the kernel."""
    root = ROOT if root is None else root
    top = root / "sys/fs/cgroup"
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return None
    first = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", groups, re.MULTILINE)
    second = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    if first is not None:  # version 1; in a container the group itself may be mounted as the root
        own = [top / "memory" / first[1] / "memory.oom_control", top / "memory/memory.oom_control"]
    else:
        own = [top / second[1] / "memory.events"] if second is not None else []
    return next((count for count in map(_count, own) if count is not None), None)


def _count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
