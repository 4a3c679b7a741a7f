"""Everything around the ranks: the command line, submission, schedulers, and the processes of a job."""

import sys

PROGRAM = "python submit.py" if sys.argv[0].split("/")[-1] == "submit.py" else "disttrain"
"""The command as it was called, for help and messages; `disttrain` in a job."""
