"""The log of a node, to which its agent, torchrun and loader processes write. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from jobs.core.journal import utc_now


def log_line(text: str) -> None:
    """Write one line of the agent, with the time. A full disk loses the line, not the agent."""
    with contextlib.suppress(OSError):
        print(f"{utc_now()} agent: {text}", flush=True)


def log_traceback() -> None:
    """Write the traceback of the exception that is being handled."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


def redirect_output(path: Path) -> None:
    """Append stdout and stderr of this process to the file at `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (sys.stdout, sys.stderr):
        os.dup2(log, target.fileno())
    os.close(log)
