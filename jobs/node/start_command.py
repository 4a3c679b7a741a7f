"""The start of one process of a `command`, by torchrun: its log and its end with torchrun, then the script.

    python start_command.py LOGS FOLDER WORDS...

The process becomes `python WORDS...` in the working directory FOLDER, with its output in
`LOGS/rank-RRRRR.log`. Runs as a file, so it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(logs: str, folder: str, words: list[str]) -> NoReturn:
    """Replace this process by the script."""
    log = os.open(
        os.path.join(logs, f"rank-{int(os.environ['RANK']):05d}.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o666,
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if sys.platform == "linux":  # else a killed torchrun would leave orphans that train on
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    # `-P` keeps the working directory out of the module search path: the copy of a module is on it
    options = ["-P"] if words[0] == "-m" else []
    os.execv(sys.executable, [sys.executable, "-u", *options, *words])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
