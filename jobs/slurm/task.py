"""What srun starts on each node: `python -m jobs.slurm.task RUN_DIR --submission N`, and for
`jobs/train.sbatch` `--by-hand ARGUMENTS...` (see `jobs.byhand`).

Turns what Slurm says of the job into what `jobs.agent` needs, and becomes it: as the task itself, not a
child of it, the agent gets the signals that Slurm sends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping

from jobs import agent
from jobs.slurm import commands


def main(argv: list[str] | None = None) -> int:
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # before anything that takes time
        signal.signal(warning, signal.SIG_IGN)
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--by-hand"]:
        from jobs import byhand

        return byhand.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m jobs.slurm.task", description=__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("--submission", type=int, required=True)
    given = parser.parse_args(arguments)
    hosts = commands.hostnames(os.environ["SLURM_JOB_NODELIST"])
    if hosts is None:
        print("cannot start: scontrol does not say which nodes this job has", file=sys.stderr)
        return agent.EXIT_LAUNCH_FAILED
    arguments = [given.run_dir, "--submission", str(given.submission)]
    arguments += ["--node-rank", os.environ["SLURM_NODEID"], "--nodes", os.environ["SLURM_JOB_NUM_NODES"]]
    arguments += ["--job-id", job_id(os.environ), "--hosts", *hosts]
    return agent.main(arguments)


def job_id(environ: Mapping[str, str]) -> str:
    """The id by which Slurm's commands mean this job and no other task of its array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]


if __name__ == "__main__":
    sys.exit(main())
