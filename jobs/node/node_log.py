"""The log of a node, to which its agent, torchrun and loader processes write. Standard library only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.core.journal import utc_now


def log_line(text: str) -> None:
    """Write one line of the agent, with the time."""
    print(f"{utc_now()} agent: {text}", flush=True)


def redirect_output(path: Path) -> None:
    """Append stdout and stderr of this process to the file at `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (sys.stdout, sys.stderr):
        os.dup2(log, target.fileno())
    os.close(log)
