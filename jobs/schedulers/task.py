"""The task of a submitted run on each node: `python -m jobs.schedulers.task RUN_DIR --submission N`.

The task reads the job from the scheduler's variables and runs `jobs.node.agent` in its own process, not in a
child, because Slurm sends its signals to the task.
"""

from jobs.node import interpreter

if __name__ == "__main__":
    interpreter.require_python()
    interpreter.block_signals()

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core import processes, requeue_policy
from jobs.core.packing import Packing
from jobs.node import agent, ending
from jobs.node.allocation import CurrentAllocation, NodeContext
from jobs.schedulers import inherited_variables


def current_allocation(
    environ: Mapping[str, str] = os.environ, place: int | None = None
) -> CurrentAllocation:
    """The job that this process belongs to, for the run at this place of it. Raises `ConfigError` outside of
    any."""
    if "SLURM_JOB_ID" in environ:
        from jobs.schedulers.slurm.allocation import SlurmAllocation

        return SlurmAllocation(environ, place)
    raise ConfigError("this process is in no job: SLURM_JOB_ID is not set")


def main(argv: list[str] | None = None) -> int:
    """Run the agent of one node; return the exit code of the task."""
    parser = argparse.ArgumentParser(prog="python -m jobs.schedulers.task", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument(
        "--after-failure",
        action="store_true",
        help="close the attempt of agents that were killed, and requeue",
    )
    args = parser.parse_args(argv)
    run = RunDir(args.run_dir.absolute())
    packing = Packing.of(run, args.submission)
    allocation = current_allocation(place=packing.place if packing else None)
    if packing and (record := read_json_or_none(run.run_json)):
        packing.take_share(record["config"]["resources"], allocation.processors)
    hosts, command = allocation.hosts(), allocation.node_list_command
    if hosts is None:
        why = "does not list the nodes of this job" if shutil.which(command) else "is not installed"
        print(f"cannot start: {command} {why} on {processes.host()}", file=sys.stderr)
        return requeue_policy.EXIT_LAUNCH_FAILED
    rank, nodes = allocation.node_rank, allocation.nodes
    if len(hosts) != nodes or not 0 <= rank < nodes:
        print(
            f"cannot start: node {rank} of {nodes}, and {command} lists {len(hosts)} nodes", file=sys.stderr
        )
        return requeue_policy.EXIT_LAUNCH_FAILED
    for name in inherited_variables.command_inputs(os.environ):
        del os.environ[name]  # they set options of Slurm commands that ranks may call
    node = NodeContext(run, args.submission, rank, hosts, allocation, packing)
    return ending.close_abandoned(node) if args.after_failure else agent.run_agent(node)


if __name__ == "__main__":
    sys.exit(main())
