"""Find ranks of this node that train without a connection to other processes. Standard library only.

Ranks of one process group are connected by TCP: to its store, and among themselves by gloo or by NCCL's
bootstrap, also where the data take another way. MPI and Horovod connect processes, too. Thus a rank without
any such connection is in no group. Doubt gives no verdict: one connection suffices, of which only those are
left out that cannot lead to another rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from jobs.core.processes import children_of
from jobs.node.tcp_connections import established

_AFTER_S = 60.0
_EVERY_S = 5.0
"""Time between two samples: a process group that lives for less may be missed."""
_FIRST_UNPRIVILEGED_PORT = 1024
"""Lower ports, such as those of HTTPS and NFS, need root, so that no rank listens there."""


class UnconnectedRanks:
    """Samples the connections of a node's ranks until there is one. Call `sample` every second or so.

    Parameters
    ----------
    nodes : nodes of the job; there is no verdict on a single rank
    after_s : time without a connection after which there is a verdict
    """

    def __init__(
        self, nodes: int, after_s: float = _AFTER_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._after_s = after_s
        self._now = now
        self._next = now()
        self._since: float | None = None
        """Time of the first sample in which all ranks had loaded PyTorch."""
        self._has_verdict = True
        self.ranks: int | None = None
        """Number of ranks of this node, once all of them have been without a connection for long enough."""

    def sample(self, torchrun: int) -> None:
        """Look for connections of the ranks, which are the children of process `torchrun`."""
        now = self._now()
        if not self._has_verdict or now < self._next:
            return
        self._next = now + _EVERY_S
        ranks = [_descendants(pid) for pid in children_of(torchrun)]
        try:
            visible = all(map(_in_this_network, set().union(*ranks)))
            self._has_verdict = visible and not _any_connected(ranks)
        except OSError:  # processes of another user, as in some containers
            self._has_verdict = False
        if not self._has_verdict:
            self.ranks = None
        elif len(ranks) * self._nodes > 1 and all(any(map(_has_torch, rank)) for rank in ranks):
            self._since = now if self._since is None else self._since
            if now - self._since >= self._after_s:
                self.ranks = len(ranks)


def _descendants(pid: int) -> set[int]:
    return {pid}.union(*map(_descendants, children_of(pid)))


def _in_this_network(pid: int) -> bool:
    """Whether `/proc/net/tcp` lists the connections of a process; true of one that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _any_connected(ranks: Sequence[Set[int]]) -> bool:
    """Whether one of these sets of processes has a connection that may lead to another rank."""
    connections = list(established())
    inode_at = {each.here: each.inode for each in connections}
    for rank in ranks:
        own = set().union(*map(_socket_inodes, rank))
        for each in connections:
            leads_out = each.peer[1] >= _FIRST_UNPRIVILEGED_PORT and inode_at.get(each.peer) not in own
            if each.inode in own and leads_out:
                return True
    return False


def _socket_inodes(pid: int) -> set[str]:
    folder, found = Path(f"/proc/{pid}/fd"), set()
    try:
        for name in os.listdir(folder):
            found.add(os.readlink(folder / name).removeprefix("socket:[").removesuffix("]"))
    except (FileNotFoundError, ProcessLookupError):  # closed, or ended
        pass
    return found


def _has_torch(pid: int) -> bool:
    try:
        return "/libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
