"""Limit of locked memory that has effect on this process. Pure, standard library only."""

from __future__ import annotations

import re

UNLIMITED = "unlimited"
_CAP_IPC_LOCK = 14
"""Number of the capability in `linux/capability.h`."""
_ALL_USERS = ["0", "0", "4294967295"]
"""`uid_map` of the initial user namespace."""


def effective_limit(limits: str | None, status: str | None, uid_map: str | None) -> str | None:
    """`unlimited`, or bytes as decimal digits; None if unknown.

    The soft limit has no effect on a process with CAP_IPC_LOCK in the initial user namespace, such as one of
    root: the kernel tests `capable(CAP_IPC_LOCK)` before it refuses (`ib_umem_get` in
    drivers/infiniband/core/umem.c, `__account_locked_vm` in mm/util.c). It has effect on root of a container
    with a user namespace of its own, which has the capability only there.

    `limits`, `status`, `uid_map`: contents of these files in `/proc/self`; None if there is none.
    """
    found = re.search(rf"^Max locked memory\s+({UNLIMITED}|\d+)\s", limits or "", re.MULTILINE)
    if found is None:
        return None
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)\s*$", status or "", re.MULTILINE)
    has_capability = effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)
    # a kernel without user namespaces has no `uid_map`
    is_initial = uid_map is None or uid_map.split() == _ALL_USERS
    return UNLIMITED if has_capability and is_initial else found[1]


def limit_bytes(limit: str | None) -> int | None:
    """The limit as a number; None if it is unlimited or unknown."""
    return int(limit) if limit is not None and limit.isdecimal() else None
