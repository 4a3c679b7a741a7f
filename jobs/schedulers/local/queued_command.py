"""Run a command at its turn in this machine's queue:

    python -m jobs.schedulers.local.queued_command JOURNAL --submission N --ticket T COMMAND...

COMMAND is a file of a code copy, with its arguments; it imports that copy. If the submission is revoked
during the wait, the command does not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from disttrain.records.run_directory import RunDir
from jobs.core import journal, processes
from jobs.schedulers.local import fifo_queue


def main(argv: list[str] | None = None) -> int:
    """Run the command after all jobs submitted earlier have ended; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.schedulers.local.queued_command", description=main.__doc__
    )
    parser.add_argument("journal", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--ticket", type=int, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(argv)
    folder = RunDir(given.journal)
    with fifo_queue.hold(given.ticket) as slot:
        if slot is None:
            return 0
        journal.write_holder(folder, given.submission, processes.current_process().as_dict())
        slot.wait_turn()
        if journal.entry(folder, given.submission).read("claim") is not None:
            return 0
        code = str(Path(given.command[0]).parent)
        path = os.pathsep.join([code, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, *given.command]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
