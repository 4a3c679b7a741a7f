"""Find the ranks of this node that hang, and those that train apart.

A rank hangs if it has been in one step, or in one other phase, for longer than the limit of its heartbeat
(`disttrain.runtime.rank_heartbeat`). A rank that waits in a collective has `_OTHER_NODES_S` more, in which
the node of the silent rank finds it.

Ranks of one process group are connected by TCP: to its store, and among themselves by gloo or by NCCL's
bootstrap, also where the data take another way. MPI and Horovod connect processes, too. Thus a rank without
any such connection is in no group. Doubt gives no verdict.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from disttrain.records.heartbeat import INTERVAL_S, Heartbeat, read_heartbeats
from disttrain.records.json_files import create_exclusive, read_json_or_none, write_json
from disttrain.records.run_directory import Attempt
from jobs.core.processes import is_running, with_descendants
from jobs.core.rank_positions import RankPosition, describe_hang
from jobs.node.allocation import log_line
from jobs.node.peers import record

_OTHER_NODES_S = 15.0
_STOPPED_AFTER_S = 10 * INTERVAL_S
"""A rank without a heartbeat for this time is stopped."""
SUSPENDED_S = 10.0
"""After a longer pause of this process, the scheduler has suspended the job, and the ranks with it."""
_MEMORY = Path("/dev/shm")
_AGENT_FOLDER = "disttrain-agent-"
_APART_AFTER_S = 60.0
_APART_EVERY_S = 5.0
"""Time between two samples: a process group that lives for less may be missed."""
_FIRST_UNPRIVILEGED_PORT = 1024
"""Lower ports, such as those of HTTPS and NFS, need root, so that no rank listens there."""


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder of this node that its agent and ranks share: in `/dev/shm`, or else for temporary files.

    Removes those of agents that were killed. The agent holds a lock on its folder as long as it lives.
    """
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    made = Path(tempfile.mkdtemp(prefix=f".{_AGENT_FOLDER}", dir=parent))
    lock = os.open(made, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = made.rename(parent / made.name.removeprefix("."))  # from now on another agent may find it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's agents whose lock the kernel has released."""
    for folder in parent.glob(f"{_AGENT_FOLDER}*"):
        with contextlib.suppress(OSError):  # it is locked, of another user, or just removed
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


class HangWatch:
    """Reads the heartbeats in `folder`. Call `positions` every few seconds.

    Parameters
    ----------
    now : clock of the heartbeats
    alive : whether the process of this id exists
    """

    def __init__(
        self,
        folder: Path,
        now: Callable[[], float] = time.monotonic,
        alive: Callable[[int], bool] = is_running,
    ) -> None:
        self._folder = folder
        self._now = now
        self._alive = alive
        self._read_at = self._resumed_at = now()

    def positions(self) -> list[RankPosition]:
        """Positions of the live ranks of this node. Time in which the job was suspended does not count."""
        now = self._now()
        if now - self._read_at > SUSPENDED_S:
            self._resumed_at = now
        self._read_at = now
        heartbeats = [each for each in read_heartbeats(self._folder) if self._alive(each.pid)]
        return [self._position(each, now) for each in heartbeats]

    def _position(self, heartbeat: Heartbeat, now: float) -> RankPosition:
        return RankPosition(
            rank=heartbeat.rank,
            phase=heartbeat.phase,
            step=heartbeat.step,
            silent_s=now - max(heartbeat.since, self._resumed_at),
            limit_s=heartbeat.limit_s,
            waiting=heartbeat.waiting,
            stopped=now - max(heartbeat.written, self._resumed_at) > _STOPPED_AFTER_S,
            where=heartbeat.where,
        )


def overdue(positions: Sequence[RankPosition], share: float = 1.0) -> list[RankPosition]:
    """The ranks that have used up this share of their limit."""
    return [
        each
        for each in positions
        if each.silent_s > share * each.limit_s + (_OTHER_NODES_S if each.waits_for_others else 0.0)
    ]


def warn(attempt: Attempt, node: int, late: Sequence[RankPosition]) -> None:
    """Log a hang of this node that will end soon, and write `hang-warning.json` for `status`.

    A warning that names a silent rank replaces one of a node whose ranks all wait, not the other way round.
    """
    left_s = min(each.limit_s - each.silent_s for each in late)
    message = describe_hang(late)
    log_line(f"no progress: {message}; the ranks end in {left_s:.0f} s")
    write = create_exclusive if all(each.waits_for_others for each in late) else write_json
    warning = {"node": node, "message": message, "ends_at": time.time() + left_s}
    record(attempt, attempt.hang_warning, warning, write)


def withdraw_warning(attempt: Attempt, node: int) -> None:
    """Remove the warning of this node: its ranks train again. Those of another node may still hang."""
    log_line("the ranks make progress again")
    if (read_json_or_none(attempt.hang_warning) or {}).get("node") == node:
        with contextlib.suppress(OSError):
            attempt.hang_warning.unlink(missing_ok=True)


def positions_record(positions: Sequence[RankPosition], hung: bool) -> dict[str, Any]:
    """Content of `node-NN.ranks.json`: positions of a node's ranks before their end."""
    return {"hung": hung, "time": time.time(), "ranks": [asdict(each) for each in positions]}


class UnconnectedRanks:
    """Samples the TCP connections of a node's ranks until there is one. Call `sample` every second or so.

    Parameters
    ----------
    nodes : nodes of the job; there is no verdict on a single rank
    after_s : time without a connection after which there is a verdict
    """

    def __init__(
        self, nodes: int, after_s: float = _APART_AFTER_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._after_s = after_s
        self._now = now
        self._next = now()
        self._since: float | None = None
        """Time of the first sample in which all ranks had loaded PyTorch."""
        self._settled = False
        """Whether a rank is connected, or cannot be seen."""
        self.ranks: int | None = None
        """Number of ranks of this node, once all of them have been without a connection for long enough."""

    def sample(self, started: Sequence[int]) -> None:
        """Look for connections of the ranks, which are these processes and those below them."""
        now = self._now()
        if self._settled or now < self._next:
            return
        import psutil  # 0.1 s, which the trainer's agents save

        self._next = now + _APART_EVERY_S
        ranks = [with_descendants(pid) for pid in started]
        try:
            self._settled = any(map(_is_connected, ranks))
            if self._settled:
                self.ranks = None
            elif len(ranks) * self._nodes > 1 and all(any(map(_has_torch, rank)) for rank in ranks):
                self._since = now if self._since is None else self._since
                if now - self._since >= self._after_s:
                    self.ranks = len(ranks)
        except (PermissionError, psutil.AccessDenied):  # processes of another user, as in some containers
            self._settled, self.ranks = True, None


def _is_connected(rank: Set[int]) -> bool:
    """Whether the processes of a rank have a connection that may lead to another rank."""
    ports = {pair for pid in rank for pair in _connected_ports(pid)}
    return any(
        peer >= _FIRST_UNPRIVILEGED_PORT and (peer, own) not in ports  # the other end is not in the rank
        for own, peer in ports
    )


def _connected_ports(pid: int) -> Iterator[tuple[int, int]]:
    """Own port and port of the peer of each TCP connection of a process."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
        for each in psutil.Process(pid).net_connections("tcp"):
            if each.status == psutil.CONN_ESTABLISHED:
                yield each.laddr.port, each.raddr.port


def _has_torch(pid: int) -> bool:
    try:
        return "/libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
