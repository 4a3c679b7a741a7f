"""Memory of a rank on the CPU: control groups, resource limits, physical memory, resident set.

Control groups and physical memory are shared by the ranks of a node; a resource limit holds for each process.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.process_limits import memory_group, number_after


def host_limit(local_ranks: int, root: Path = Path("/")) -> tuple[int, str]:
    """Bytes that this process, one of `local_ranks` on its node, may reach, and what limits it.

    Of shared memory: this rank's share of what is free now. All ranks of the node must measure at the same
    time. Raises `ConfigError` where no limit can be read.
    """
    resident = resident_bytes(root)
    limits = [(resident + max(0, free) // local_ranks, source) for _, free, source in _shared(root)]
    for name in ("RLIMIT_DATA", "RLIMIT_AS"):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            limits.append((soft, name))
    if not limits:
        raise ConfigError(
            "train.local_batch_size=auto: no memory limit can be read from control groups, /proc/meminfo or "
            "ulimit; give a number"
        )
    return min(limits)


def total_memory(local_ranks: int, root: Path = Path("/")) -> float:
    """This rank's share of the machine's memory and of the limits of its control groups, in use or not:
    the same at every start. Infinite where nothing can be read."""
    return min((limit for limit, _, _ in _shared(root)), default=math.inf) / local_ranks


def _shared(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, bytes free or reclaimable by the kernel, source) of the machine and of the control groups of
    this process that have a limit."""
    total, available = (number_after(name, root / "proc/meminfo") for name in ("MemTotal:", "MemAvailable:"))
    if total is not None and available is not None:
        yield 1024 * total, 1024 * available, "MemAvailable"
    top, path = memory_group(root) or (root, "")
    limit_file, used_file = "memory.max", "memory.current"
    if top.name == "memory":  # version 1, which writes a number near 2^63 for no limit
        limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
    for folder in (top / path, *(top / path).parents):
        limit, used = (number_after("", folder / name) for name in (limit_file, used_file))
        if limit is not None and used is not None:
            cache = number_after("inactive_file", folder / "memory.stat") or 0
            yield limit, limit - max(0, used - cache), f"{limit_file} of {folder}"
        if folder == top:
            return


def resident_bytes(root: Path = Path("/")) -> int:
    """Resident set of this process."""
    return 1024 * (number_after("VmRSS:", root / "proc/self/status") or 0)
