"""The task that srun starts on each node: `python -m jobs.schedulers.slurm.task RUN_DIR --submission N`.

The task reads the job from Slurm's variables and runs `jobs.node.agent` in its own process, not in a child,
because Slurm sends its signals to the task.
"""

from jobs.node import interpreter

if __name__ == "__main__":
    interpreter.require_python()
    interpreter.block_signals()

import argparse
import os
import shutil
import sys
from pathlib import Path

from disttrain.records.run_directory import RunDir
from jobs.core import processes, requeue_policy
from jobs.node import agent, ending
from jobs.node.allocation import NodeContext
from jobs.schedulers import inherited_variables
from jobs.schedulers.slurm.allocation import SlurmAllocation


def main(argv: list[str] | None = None) -> int:
    """Run the agent of one node; return the exit code of the task."""
    parser = argparse.ArgumentParser(prog="python -m jobs.schedulers.slurm.task", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument(
        "--after-failure",
        action="store_true",
        help="close the attempt of agents that were killed, and requeue",
    )
    given = parser.parse_args(argv)
    allocation = SlurmAllocation(os.environ)
    hosts = allocation.hosts()
    if hosts is None:
        why = "does not list the nodes of this job" if shutil.which("scontrol") else "is not installed"
        print(f"cannot start: scontrol {why} on {processes.host()}", file=sys.stderr)
        return requeue_policy.EXIT_LAUNCH_FAILED
    rank, nodes = allocation.node_rank, allocation.nodes
    if len(hosts) != nodes or not 0 <= rank < nodes:
        print(f"cannot start: node {rank} of {nodes}, and scontrol lists {len(hosts)} nodes", file=sys.stderr)
        return requeue_policy.EXIT_LAUNCH_FAILED
    for name in inherited_variables.command_inputs(os.environ):
        del os.environ[name]  # they set options of Slurm commands that ranks may call
    run = RunDir(given.run_dir.absolute())
    node = NodeContext(run, given.submission, rank, hosts, allocation)
    return ending.close_abandoned(node) if given.after_failure else agent.run_agent(node)


if __name__ == "__main__":
    sys.exit(main())
