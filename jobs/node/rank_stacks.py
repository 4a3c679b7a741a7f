"""Save the stacks of the ranks of a `command`, and find the line at which each one waits.

py-spy reads a stack from outside, if it is installed and the system permits it. Else SIGABRT has
`faulthandler` print the stacks into the log of the rank, which ends: a Python program has it by
PYTHONFAULTHANDLER.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from disttrain.records.run_directory import Attempt
from jobs.core.environment import TRACE_PIPES
from jobs.core.processes import is_running
from jobs.core.rank_positions import RankPosition
from jobs.node.allocation import log_line
from jobs.node.silent_ranks import RankProcess

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
    return {
        each.rank: stack for each, text in texts.items() if times[text] == 1 and (stack := main_thread(text))
    }


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
