"""Child processes that call a driver and may hang in it. Standard library only."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

_WITHIN_S = 5.0


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that gets SIGCHLD, for which shells wait, also where the caller blocks it."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end(processes: Sequence[subprocess.Popen[Any]], within_s: float = _WITHIN_S) -> None:
    """Kill processes and wait at most `within_s` seconds for all of them.

    A process that hangs in a driver (state D) dies only when its system call returns.
    """
    for process in processes:
        process.kill()
    deadline = time.monotonic() + within_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def output(command: Sequence[str], within_s: float, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command.

    Raises `OSError` if it cannot be started, and `subprocess.SubprocessError` if it fails or takes more than
    `within_s` seconds.
    """
    pipe = subprocess.PIPE
    process = start(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )
    try:
        printed, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun withdraws its job
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_WITHIN_S)
        raise
    finally:
        end([process])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, errors)
    return printed
