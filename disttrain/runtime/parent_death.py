"""The end of a process when its parent dies. Standard library only."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (PR_SET_PDEATHSIG); without effect except on
    Linux."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
