"""How often the kernel ended a process of this one's control group for want of memory. Standard library only.

Ranks are in the group of their agent, whichever group's limit it was, so the agent's count is of theirs.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")
"""Where `proc` and `sys` are."""


def oom_kills(root: Path | None = None) -> int | None:
    """Counted since the group was made; None where no control group tells."""
    root = ROOT if root is None else root
    top = root / "sys/fs/cgroup"
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return None
    first = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", groups, re.MULTILINE)
    second = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    if first is not None:  # version 1, where a container may have the group itself at the top
        own = [top / "memory" / first[1] / "memory.oom_control", top / "memory/memory.oom_control"]
    else:
        own = [top / second[1] / "memory.events"] if second is not None else []
    return next((count for count in map(_count, own) if count is not None), None)


def _count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
