"""Linux processes: who they are, whether they still live, and ending a whole family of them.

Standard library only. torchrun puts its workers into sessions of their own, so a process group does
not hold them; a child subreaper does: every orphan below it becomes its child and can be found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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
    """A process, named so that a recycled pid or a restarted machine is not mistaken for it."""

    host: str
    boot: str
    pid: int
    start_ticks: int
    """Clock ticks from boot to its start."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def started(self) -> float:
        """Its start in seconds since the epoch."""
        with open("/proc/stat") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return boot_s + self.start_ticks / os.sysconf("SC_CLK_TCK")


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def host() -> str:
    return socket.gethostname()


@contextlib.contextmanager
def child_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Processes started within the block inherit these variables as well; of value None, they do not."""
    before = {name: os.environ.get(name) for name in changes}
    _change(changes)
    try:
        yield
    finally:
        _change(before)


def _change(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def current_process() -> ProcessIdentity:
    """The calling process."""
    status = _process_stat(os.getpid())
    assert status is not None
    return ProcessIdentity(host(), _boot(), os.getpid(), status.start_ticks)


def is_alive(recorded: Mapping[str, Any]) -> bool | None:
    """Whether a process recorded by `Process.as_dict` still runs; None if that was on another host."""
    if recorded.get("host") != host():
        return None
    status = _process_stat(int(recorded.get("pid", 0)))
    return (
        recorded.get("boot") == _boot()
        and status is not None
        and status.state not in "ZX"
        and status.start_ticks == recorded.get("start_ticks")
    )


@dataclass(frozen=True)
class _ProcessStat:
    state: str
    parent: int
    start_ticks: int


def _process_stat(pid: int) -> _ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name, in parentheses, may hold anything
    return _ProcessStat(fields[0], int(fields[1]), int(fields[19]))


def become_subreaper() -> None:
    """Adopt every orphan among this process's descendants, so that `kill_descendants` finds them all."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: Sequence[str], *, log: int | None = None, env: Mapping[str, str] | None = None) -> int:
    """Start a child in a session of its own that gets SIGTERM when this process dies; its pid.

    `log` is a file descriptor for its output. SIGUSR1 and SIGUSR2 are ignored in it: torchrun dies of
    them, and schedulers send them.
    """
    libc = ctypes.CDLL(None)  # looked up before the fork
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above took effect
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
    """Collect the children that have ended: pid to exit code, -N for one ended by signal N."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def descendants() -> list[int]:
    """Every live process below this one."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (status := _process_stat(int(entry))) is not None and status.state not in "ZX":
            parents.setdefault(status.parent, []).append(int(entry))
    found = list(parents.get(os.getpid(), []))
    for pid in found:  # grows while it is walked
        found.extend(parents.get(pid, []))
    return found


def kill_descendants(within_s: float = 10.0) -> dict[int, int]:
    """SIGKILL everything below this process until nothing is left, or `within_s` have passed (a process
    stuck in the kernel); the exit codes of the children among them.

    Call it in a subreaper: elsewhere an orphan escapes to init.
    """
    deadline = time.monotonic() + within_s
    ended = reap_children()
    while (pids := descendants()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        ended |= reap_children()
    return ended | reap_children()
