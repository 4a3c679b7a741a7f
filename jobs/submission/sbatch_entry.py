"""The task of `sbatch jobs/train.sbatch`: `python -m jobs.submission.sbatch_entry ARGUMENTS...`.

This module refuses an interpreter that cannot train, and then calls `jobs.submission.by_hand`.
"""

from jobs.node import interpreter

if __name__ == "__main__":
    interpreter.require_python()
    interpreter.block_signals()

import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run one node of the run that the arguments describe; return the exit code of the task."""
    interpreter.require_packages()
    from jobs.submission import by_hand

    return by_hand.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
