"""What srun starts on each node: `python -m jobs.schedulers.slurm.task RUN_DIR --submission N`, and for
`jobs/train.sbatch` `--by-hand ARGUMENTS...` (see `jobs.submission.sbatch_entry`).

Turns what Slurm says of the job into what `jobs.node.agent` needs, and becomes it: as the task itself, not a
child of it, the agent gets the signals that Slurm sends.
"""

import signal
import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- by hand it may be anybody's, and what follows needs a newer one
    found = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, 3.11 or newer is needed"
    print(f"cannot start: {found}; name another with DISTTRAIN_PYTHON", file=sys.stderr)
    sys.exit(93)

if __name__ == "__main__":  # what follows takes time, in which a signal must not end this process
    of_slurm = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, of_slurm)
    for number in of_slurm:  # the script has them ignored until now
        signal.signal(number, signal.SIG_DFL)

import argparse
import os
import platform
from importlib.util import find_spec

from jobs.core import requeue_policy
from jobs.node import agent
from jobs.schedulers.slurm import commands
from jobs.schedulers.slurm.allocation import SlurmAllocation

_NEEDED = ("torch", "pydantic", "yaml")
"""Packages by which an interpreter that was installed for this is told from another."""


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--by-hand"]:
        absent = [name for name in _NEEDED if find_spec(name) is None]
        if absent:
            lacks = f"{sys.executable} on {platform.node()} has no {', '.join(absent)}"
            print(f"cannot start: {lacks}; name another with DISTTRAIN_PYTHON", file=sys.stderr)
            return requeue_policy.EXIT_DO_NOT_REQUEUE
        from jobs.submission import sbatch_entry

        return sbatch_entry.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m jobs.schedulers.slurm.task", description=__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("--submission", type=int, required=True)
    given = parser.parse_args(arguments)
    hosts = commands.hostnames(os.environ["SLURM_JOB_NODELIST"])
    if hosts is None:
        print("cannot start: scontrol does not say which nodes this job has", file=sys.stderr)
        return requeue_policy.EXIT_LAUNCH_FAILED
    arguments = [given.run_dir, "--submission", str(given.submission)]
    arguments += ["--node-rank", os.environ["SLURM_NODEID"], "--nodes", os.environ["SLURM_JOB_NUM_NODES"]]
    return agent.main([*arguments, "--hosts", *hosts], SlurmAllocation(os.environ))


if __name__ == "__main__":
    sys.exit(main())
