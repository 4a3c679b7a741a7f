"""Memory limit of a CPU rank: control groups, resource limits, physical memory. Standard library only.

Control groups and physical memory are shared by the ranks of a node; a resource limit holds for each process.
"""

from __future__ import annotations

import math
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2^63 for no limit."""


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes of memory that one rank may use."""

    bytes: int
    source: str
    shared: bool = True
    """Whether other processes of this rank use the same memory."""


def host_limit(local_ranks: int, root: Path = Path("/")) -> MemoryLimit:
    """The smallest limit of this process, which is one of `local_ranks` on its node.

    Of shared memory: this rank's share of what is free now. All ranks of the node must measure at the same
    time. Raises `RuntimeError` where no limit can be read.
    """
    own = resident_bytes(root)
    limits = [MemoryLimit(own + max(0, free) // local_ranks, source) for free, source in _shared_free(root)]
    for name in ("RLIMIT_DATA", "RLIMIT_AS"):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            limits.append(MemoryLimit(soft, name, shared=False))
    if not limits:
        raise RuntimeError("no memory limit can be read: neither control groups nor /proc/meminfo")
    return min(limits, key=lambda limit: limit.bytes)


def total_memory(local_ranks: int, root: Path = Path("/")) -> float:
    """This rank's share of the machine's memory and of the limits of its control groups, in use or not:
    the same at every start. Infinite where nothing can be read."""
    limits = [_number(folder / limit_name) for folder, limit_name, _ in _groups(root)]
    physical = _stat(root / "proc/meminfo", "MemTotal:")
    limits.append(None if physical is None else physical * 1024)
    return min((limit for limit in limits if limit is not None), default=math.inf) / local_ranks


def _shared_free(root: Path) -> Iterator[tuple[int, str]]:
    """(free bytes, source) of each control group above this process, and of the machine."""
    for folder, limit_name, usage_name in _groups(root):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            cache = _stat(folder / "memory.stat", "inactive_file") or 0  # reclaimed before any kill
            yield limit - max(0, usage - cache), f"{limit_name} of {folder}"
    if (available := _stat(root / "proc/meminfo", "MemAvailable:")) is not None:
        yield available * 1024, "MemAvailable"


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """(folder, file of the limit, file of the usage) of this process's control group and those above it."""
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    first = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", text, re.MULTILINE)
    second = re.search(r"^0::/(.*)$", text, re.MULTILINE)
    names: tuple[str, str]
    if first is not None:
        top, path, names = (
            root / "sys/fs/cgroup/memory",
            first[1],
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
    elif second is not None:
        top, path, names = root / "sys/fs/cgroup", second[1], ("memory.max", "memory.current")
    else:
        return
    folder = top / path if path else top
    while True:
        yield (folder, *names)
        if folder == top:
            return
        folder = folder.parent


def resident_bytes(root: Path = Path("/")) -> int:
    """Resident set of this process."""
    return 1024 * (_stat(root / "proc/self/status", "VmRSS:") or 0)


def peak_resident_bytes() -> int:
    """Largest resident set of this process since `reset_peak`, or since its start."""
    peak = _stat(Path("/proc/self/status"), "VmHWM:")
    return 1024 * (peak if peak is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def reset_peak() -> None:
    """Begin a new `peak_resident_bytes` where the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # `max`: no limit
        return None


def _stat(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}\s+(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
