"""Find the ranks of a `command` that hang without any sign, from outside.

A rank is silent that writes no output and no step records, while the run saves nothing and reports no
figures. It is idle if no kernel runs on its GPUs, and its processes hardly compute, read or write
(`_IDLE_PER_S`). A rank that waits in NCCL for a hung one has a kernel that runs: so only the rank that hangs
is idle. While any rank prints, or works without a kernel, as one that prepares the data of all, the others
may wait for it, so that none hangs. Doubt gives no verdict.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.processes import with_descendants
from jobs.core.rank_positions import SCRIPT, RankPosition
from jobs.node.command_stop import is_rank, uppermost
from jobs.node.hang import SUSPENDED_S

_LONGEST_INTERVAL_S = 15.0
_IDLE_PER_S = (0.1, 1e6, 0.0)
"""Most work of an idle rank in a second: seconds of processors, bytes from and to storage, kernels."""


@dataclass(frozen=True, order=True)
class RankProcess:
    """The process of one rank."""

    rank: int
    pid: int


def rank_processes(started: Sequence[int]) -> list[RankProcess]:
    """The ranks among the processes of a command and those below, without the processes that they start.
    Where none has the variables of a rank, it is the process that `job.launcher: node` starts, by the number
    of its node."""
    found = [rank for pid in started for rank in uppermost(pid, is_rank)]
    name = "RANK" if found else "NODE_RANK"
    found = found or [pid for pid in started if name in _environment(pid)]
    numbers = [(_environment(pid).get(name, ""), pid) for pid in found]
    return sorted(RankProcess(int(number), pid) for number, pid in numbers if number.isdigit())


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    with contextlib.suppress(psutil.Error):  # it has ended, or is of another user
        return psutil.Process(pid).environ()
    return {}


def work_of(pid: int) -> tuple[float, int]:
    """Processor time in seconds, and bytes from and to storage, of a process and its descendants so far."""
    cpu_s, stored = 0.0, 0
    for each in map(psutil.Process, filter(psutil.pid_exists, with_descendants(pid))):
        with contextlib.suppress(psutil.Error):
            cpu_s += sum(each.cpu_times()[:2])
            counters = each.io_counters()
            stored += counters.read_bytes + counters.write_bytes
    return cpu_s, stored


class _Seen(NamedTuple):
    """A rank at one time."""

    at: float
    signs: Sequence[Any]
    """Times and sizes of its files and of those of the run."""
    work: Sequence[float]
    """See `_IDLE_PER_S`."""
    active_at: float
    """Latest time at which it was neither silent nor idle."""
    computes: bool = False
    """Whether a kernel ran since the time before."""
    works: bool = False
    """Whether it wrote output or steps, or did other work without a kernel, since then."""


class SilentRanks:
    """Call `positions` once a second.

    Parameters
    ----------
    limit_s : seconds of silence and idleness that count as a hang
    kernels : a number by rank that grows while a kernel runs on its GPUs
    """

    def __init__(
        self,
        run: RunDir,
        attempt: Attempt,
        limit_s: float,
        kernels: Callable[[], Mapping[int, float]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempt = attempt
        self._limit_s = limit_s
        self._kernels = kernels
        self._now = now
        self._every_s = min(_LONGEST_INTERVAL_S, limit_s / 20)
        saves = run.checkpoints
        self._of_run = (saves, saves / "saved", run.metrics, attempt.rank_works)
        self._called_at = self._looked_at = now()
        self._seen: dict[RankProcess, _Seen] = {}

    def positions(self, ranks: Sequence[RankProcess]) -> list[RankPosition]:
        """The positions of these ranks; time in which the job was suspended does not count."""
        now = self._now()
        if now - self._called_at > SUSPENDED_S:
            self._seen.clear()
        self._called_at = now
        if now - self._looked_at >= self._every_s or not self._seen:
            self._looked_at = now
            kernels = self._kernels()
            of_run = [_changed(path) for path in self._of_run]
            self._seen = {each: self._look(each, now, of_run, kernels) for each in ranks}
            if any(each.works for each in self._seen.values()):
                with contextlib.suppress(OSError):
                    self._attempt.rank_works.touch()  # for the agents of all nodes
        return [self._position(each, seen, now) for each, seen in self._seen.items()]

    def _look(
        self, rank: RankProcess, now: float, of_run: Sequence[Any], kernels: Mapping[int, float]
    ) -> _Seen:
        output = Path(f"/proc/{rank.pid}/fd")
        files = (output / "1", output / "2", self._attempt.steps(rank.rank))
        own = [_changed(path) for path in files]
        signs = (*own, *of_run)
        of_node = sum(kernels.values())  # for the ranks of a launcher that was sampled as one process
        work = (*work_of(rank.pid), kernels.get(rank.rank, of_node))
        before = self._seen.get(rank) or _Seen(now, signs, work, now)
        grown = [after - earlier for after, earlier in zip(work, before.work, strict=True)]
        most = [idle * (now - before.at) for idle in _IDLE_PER_S]
        busy, computes = any(map(operator.gt, grown, most)), grown[-1] > 0
        active = busy or signs != before.signs
        works = own != [*before.signs[: len(own)]] or (busy and not computes)
        return _Seen(now, signs, work, now if active else before.active_at, computes, works)

    def _position(self, rank: RankProcess, seen: _Seen, now: float) -> RankPosition:
        return RankPosition(
            rank=rank.rank,
            phase=SCRIPT,
            step=0,
            silent_s=now - seen.active_at,
            limit_s=self._limit_s,
            waiting=seen.computes,
            stopped=_is_stopped(rank.pid),
            where="",
        )


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _changed(path: Path) -> tuple[int, int] | None:
    """Size and time of a file or folder; None without it."""
    with contextlib.suppress(OSError):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    return None
