"""Find the ranks of a `command` that hang without any sign, from outside, and save their stacks.

A rank is silent that writes no output and no step records, while the run saves nothing and reports no
figures. It is idle if no kernel runs on its GPUs, and its processes hardly compute, read or write
(`_IDLE_PER_S`). A rank that waits in NCCL for a hung one has a kernel that runs: so only the rank that hangs
is idle. While any rank works without a kernel, as one that prepares the data of all, the others may wait for
it, so that none hangs. Doubt gives no verdict.

py-spy reads a stack from outside, if it is installed and the system permits it. Else SIGABRT has
`faulthandler` print the stacks into the log of the rank, which ends: a Python program has it by
PYTHONFAULTHANDLER.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.environment import TRACE_PIPES
from jobs.core.processes import is_running, with_descendants
from jobs.core.rank_positions import SCRIPT, RankPosition
from jobs.node.allocation import log_line
from jobs.node.command_stop import is_rank, uppermost
from jobs.node.hang import SUSPENDED_S

_LONGEST_INTERVAL_S = 15.0
_IDLE_PER_S = (0.1, 1e6, 0.0)
"""Most work of an idle rank in a second: seconds of processors, bytes from and to storage, kernels."""
_TRACE_S = 2.5
"""Time for NCCL's flight recorder, which reads its pipe once a second."""
_PY_SPY_S = 5.0
_ABORT_S = 5.0
_NO_CORE = (1, 1)
"""Limit of core dumps below any of their sizes, at which the kernel does not call a collector either."""
_MAIN_THREAD = re.compile(r'"MainThread"|^Current thread ', re.MULTILINE)
_FRAME = re.compile(r'^ +(?:(\S+) \((.+):(\d+)\)|File "(.+)", line (\d+) in (.+))$', re.MULTILINE)
"""Lines of py-spy, and of `faulthandler`."""
_LIBRARY = re.compile(r"/lib/python3|<frozen|-packages/")
_WAITS = re.compile(r"/torch/(distributed|autograd)/")


@dataclass(frozen=True, order=True)
class RankProcess:
    """The process of one rank."""

    rank: int
    pid: int


def rank_processes(launcher: int) -> list[RankProcess]:
    """The ranks below a launcher, without the processes that they start. Where none has the variables of a
    rank, it is the process that `job.launcher: node` starts, by the number of its node."""
    found = uppermost(launcher, is_rank)
    name = "RANK" if found else "NODE_RANK"
    found = found or uppermost(launcher, lambda pid: name in _environment(pid))
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
    """Whether it did something else since then."""


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
        works = not computes and (busy or own != [*before.signs[: len(own)]])
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


def with_stacks(positions: Sequence[RankPosition], stacks: Mapping[int, Stack]) -> list[RankPosition]:
    """The positions with the lines of the main threads; a rank in a function that communicates waits."""
    return [
        replace(each, where=stack.where, waiting=each.waiting or stack.waiting)
        if (stack := stacks.get(each.rank))
        else each
        for each in positions
    ]


class Stack(NamedTuple):
    """The main thread of a rank."""

    where: str
    """Innermost line outside of libraries."""
    waiting: bool
    """Whether it is in a function of PyTorch that communicates, or in a backward pass."""


def save_stacks(
    attempt: Attempt, ranks: Sequence[RankProcess], memory: Path, search_path: str | None
) -> dict[int, Stack]:
    """Write a file with the stacks of each rank; the main threads by rank, where they are known."""
    _request_traces(memory)
    folders = os.pathsep.join([str(Path(sys.executable).parent), search_path or os.defpath])
    py_spy = shutil.which("py-spy", path=folders)
    texts = {each: _spied(py_spy, each.pid) for each in ranks}
    texts |= _printed([each for each, text in texts.items() if not text])
    for each, text in texts.items():
        if text:
            with contextlib.suppress(OSError):
                attempt.stack(each.rank).write_text(text, encoding="utf-8")
        else:
            log_line(f"no stack of rank {each.rank}: neither py-spy nor faulthandler can be used")
    times = Counter(texts.values())  # ranks of one log have the stacks of each other
    stacks = {each.rank: main_thread(text) for each, text in texts.items() if times[text] == 1}
    return {rank: stack for rank, stack in stacks.items() if stack is not None}


def _request_traces(memory: Path) -> None:
    """Have NCCL's flight recorder of each rank write its file."""
    requested = False
    for pipe in memory.glob(f"{TRACE_PIPES}*.pipe"):
        with contextlib.suppress(OSError):  # nobody reads it
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            requested = os.write(descriptor, b"1") > 0
            os.close(descriptor)
    time.sleep(_TRACE_S if requested else 0)


def _spied(py_spy: str | None, pid: int) -> str:
    """Empty where py-spy cannot or may not read the process, which may wait for a device."""
    if py_spy is None:
        return ""
    command = [py_spy, "dump", "--full-filenames", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PY_SPY_S)
        return done.stdout.decode(errors="replace")
    return ""


def _printed(ranks: Sequence[RankProcess]) -> dict[RankProcess, str]:
    """The output of the ranks at a SIGABRT, which ends them."""
    begins = {}
    for each in ranks:
        with contextlib.suppress(OSError, ValueError):
            log = Path(os.readlink(f"/proc/{each.pid}/fd/2"))
            begins[each] = log, log.stat().st_size
            resource.prlimit(each.pid, resource.RLIMIT_CORE, _NO_CORE)
    for each in ranks:  # of one log, all have the same begin
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGABRT)
            os.kill(each.pid, signal.SIGCONT)  # a stopped process
    until = time.monotonic() + _ABORT_S
    while any(is_running(each.pid) for each in begins) and time.monotonic() < until:
        time.sleep(0.05)
    texts = {}
    for each, (log, begin) in begins.items():
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(begin)
            texts[each] = file.read().decode(errors="replace")
    return texts


def main_thread(text: str) -> Stack | None:
    """The main thread of the stacks that py-spy or `faulthandler` gives, innermost line first."""
    found = _MAIN_THREAD.search(text)
    section = text[found.start() :].split("\nThread ")[0] if found else ""
    frames = [
        (spied or printed, line or at, name or of)
        for name, spied, line, printed, at, of in _FRAME.findall(section)
    ]
    if not frames:
        return None
    file, line, name = next((each for each in frames if not _LIBRARY.search(each[0])), frames[0])
    return Stack(f"{Path(file).name}:{line} in {name}", _WAITS.search(frames[0][0]) is not None)
