"""Processors and memory that the kernel grants to this process. Standard library only.

Ranks and their children run in the control group of their agent, so the agent's counter of OOM kills includes
them, whichever group's memory limit was reached.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from disttrain.records.run_directory import PROCESSORS

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


def count_oom_kills() -> int | None:
    """Number of OOM kills since the control group was created; None without a counter of the kernel."""
    group = memory_group(ROOT)
    if group is None:
        return None
    top, path = group
    files = [top / path / "memory.events"]
    if top.name == "memory":  # version 1; in a container the group itself may be mounted as the root
        files = [top / path / "memory.oom_control", top / "memory.oom_control"]
    counts = (number_after("oom_kill", file) for file in files)
    return next((count for count in counts if count is not None), None)


def number_after(name: str, path: Path) -> int | None:
    """The number after `name` at the beginning of a line of a file of the kernel; None without one, as of the
    limit `max`."""
    try:
        found = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def list_text(processors: Iterable[int]) -> str:
    """Numbers of processors in the form of the kernel: `0-7,64-71`."""
    numbers = set(processors)
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number for number in numbers if number + 1 not in numbers)
    pairs = zip(starts, ends, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def numbers(text: str) -> list[int]:
    """The numbers in a text of `list_text`."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]


def usable_processors(environ: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Processors of the job on this node: those of this process, and where ranks are bound those of all ranks
    (`DISTTRAIN_PROCESSORS`)."""
    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset(mask).union(numbers(environ.get(PROCESSORS, "")))
