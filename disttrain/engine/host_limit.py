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

from disttrain.records.process_limits import memory_group

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
    resident = resident_bytes(root)
    shared = [(limit - used, source) for limit, used, source in _groups(root) if used is not None]
    if (available := _stat(root / "proc/meminfo", "MemAvailable:")) is not None:
        shared.append((available * 1024, "MemAvailable"))
    limits = [MemoryLimit(resident + max(0, free) // local_ranks, source) for free, source in shared]
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
    limits = [limit for limit, _, _ in _groups(root)]
    if (physical := _stat(root / "proc/meminfo", "MemTotal:")) is not None:
        limits.append(physical * 1024)
    return min(limits, default=math.inf) / local_ranks


def _groups(root: Path) -> Iterator[tuple[int, int | None, str]]:
    """(limit, bytes in use that the kernel cannot reclaim, source) of this process's control group and of
    those above it that have a limit."""
    group = memory_group(root)
    if group is None:
        return
    top, path = group
    names = ("memory.max", "memory.current")
    if top.name == "memory":
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder in (top / path, *(top / path).parents):
        limit, used = (_number(folder / name) for name in names)
        if limit is not None and limit < _NO_LIMIT:
            cache = _stat(folder / "memory.stat", "inactive_file") or 0
            yield limit, None if used is None else max(0, used - cache), f"{names[0]} of {folder}"
        if folder == top:
            return


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
