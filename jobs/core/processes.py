"""Linux processes: identity, liveness, spawning, and killing all descendants. Standard library only.

torchrun puts its workers into sessions of their own, so killing a process group misses them. A child
subreaper adopts every orphaned descendant, so `kill_descendants` finds all of them.

The identity of a process holds its start in clock ticks since boot, which stays constant. `create_time()` of
psutil adds the boot time by the wall clock, which moves when the clock is set: a live process would then be
taken for a dead one, and its run be started twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. Start time and boot id distinguish it from a later process with the same pid."""

    host: str
    boot: str
    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def started(self) -> float:
        """Start of the process, in seconds since the epoch."""
        with open("/proc/stat", encoding="utf-8") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return boot_s + self.start_ticks / os.sysconf("SC_CLK_TCK")


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


@cache
def host() -> str:
    return socket.gethostname()


@contextlib.contextmanager
def child_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables within the block, for child processes; None removes one."""
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def current_process() -> ProcessIdentity:
    """The calling process."""
    stat = _process_stat(os.getpid())
    assert stat is not None
    return ProcessIdentity(host(), _boot_id(), os.getpid(), stat.start_ticks)


def is_alive(recorded: Mapping[str, Any]) -> bool | None:
    """Whether a process recorded by `ProcessIdentity.as_dict` runs; None if it belongs to another host."""
    if recorded.get("host") != host():
        return None
    stat = _process_stat(int(recorded.get("pid", 0)))
    return (
        recorded.get("boot") == _boot_id()
        and stat is not None
        and stat.state not in "ZX"
        and stat.start_ticks == recorded.get("start_ticks")
    )


@dataclass(frozen=True)
class _ProcessStat:
    state: str
    parent: int
    start_ticks: int


def _process_stat(pid: int) -> _ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name, in parentheses, may contain spaces
    return _ProcessStat(fields[0], int(fields[1]), int(fields[19]))


def is_running(pid: int) -> bool:
    """Whether a process of this id exists and has not ended."""
    stat = _process_stat(pid)
    return stat is not None and stat.state not in "ZX"


def become_subreaper() -> None:
    """Make this process the parent of every orphan among its descendants."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: Sequence[str], *, log: int | None = None, env: Mapping[str, str] | None = None) -> int:
    """Start a child in a session of its own; its pid. The child gets SIGTERM when this process dies.

    `log` is a file descriptor for its output. The child ignores SIGUSR1 and SIGUSR2: schedulers send these
    signals, and torchrun would die of them.
    """
    libc = ctypes.CDLL(None)  # looked up before the fork
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null if log is None else log, 1)
        os.dup2(null if log is None else log, 2)
        os.execvpe(command[0], list(command), os.environ if env is None else env)
    finally:
        os._exit(127)


def reap_children() -> dict[int, int]:
    """Wait for the children that have ended: pid to exit code, -N for a child ended by signal N."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def live_descendants() -> list[int]:
    """Pids of all live descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _process_stat(int(name))) is not None and stat.state not in "ZX":
            children.setdefault(stat.parent, []).append(int(name))
    found = list(children.get(os.getpid(), []))
    for pid in found:  # the list grows during the loop
        found.extend(children.get(pid, []))
    return found


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
    return False


def with_descendants(pid: int) -> set[int]:
    """Pids of a process and of all its descendants."""
    return {pid}.union(*map(with_descendants, children_of(pid)))


def lineage(pid: int, ancestor: int) -> list[int]:
    """Pids of a process and of those above it, up to `ancestor` if that is one of them."""
    pids = [pid]
    while pids[-1] != ancestor and (stat := _process_stat(pids[-1])) is not None:
        pids.append(stat.parent)
    return pids


def has_children(pid: int) -> bool:
    """Whether a process has a child that it has not waited for."""
    return bool(children_of(pid))


def children_of(pid: int) -> list[int]:
    """Pids of the children that a process has not waited for; none if the process does not exist."""
    with contextlib.suppress(OSError):
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(child) for text in texts for child in text.split()]
    return []


def kill_descendants(within_s: float = 10.0) -> dict[int, int]:
    """Send SIGKILL to all descendants until none is left; the exit codes of the children among them, by pid.

    It returns after `within_s` seconds even if a process hangs in the kernel. It needs `become_subreaper`:
    without that, init adopts the orphans.
    """
    deadline = time.monotonic() + within_s
    ended = reap_children()
    while (pids := live_descendants()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        ended |= reap_children()
    return ended | reap_children()
