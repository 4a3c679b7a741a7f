"""Lines of a batch script: the set-up of nodes, the agents, and a step after a failure. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.schedulers.slurm.profile import Profile

_STEP_NUMBERS = 4
"""The number of the agents' step is the number of earlier starts, modulo this: only starts that are a
multiple of it apart share a number. More numbers would cost more empty steps, each a request to the
controller."""


def job_setup(profile: Profile) -> list[str]:
    """Lines that run once, in the batch shell on the first node: the modules and `setup` of the profile."""
    lines = []
    if profile.modules:
        lines += [
            "# A batch shell is not a login shell, so `module` may be undefined.",
            "type -t module >/dev/null || . /etc/profile",
            f"module load {' '.join(map(shlex.quote, profile.modules))} || exit",
            "",
        ]
    if profile.setup:
        lines += [f"# Set-up of profile {profile.name}.", *profile.setup, ""]
    return lines


def node_setup(profile: Profile) -> list[str]:
    """Lines that define the shell script `node_setup`, which each task runs before Python.

    The script runs the profile's lines and then its own arguments. It ignores signals until the agent handles
    them. If a line exits, the script runs its arguments as well, so that the agent records the failure: the
    exit code is in `SETUP_EXIT_VARIABLE`.
    """
    if not profile.node_setup:
        return []
    script = [
        'trap "" USR1 USR2 TERM',
        f'trap "{SETUP_EXIT_VARIABLE}=\\$? exec \\"\\$@\\"" EXIT',
        *profile.node_setup,
        'exec "$@"',
    ]
    return [
        f"# Set-up of each node by profile {profile.name}. Python follows also if it exits, to record that.",
        f"node_setup={shlex.quote(chr(10).join(script))}",
        "",
    ]


def launch(
    nodes: str,
    cpus: str,
    profile: Profile,
    task: Sequence[str],
    wait_s: int,
    runs_per_job: int = 1,
) -> list[str]:
    """Lines that start an agent on each node, and a step after a failure. Only `profile` is not quoted.

    `task` is the command of an agent and its arguments. srun ends agents `wait_s` seconds after the first.
    With several runs in the job, each has an agent, in a step of its own.
    """
    command, arguments = task
    is_packed = runs_per_job > 1
    agents = [f"--nodes={nodes} --ntasks={nodes}", f"--ntasks-per-node=1 --cpus-per-task={cpus}"]
    one_task = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1"
    overlap = "--relative=0 --overlap"
    wait = f"--kill-on-bad-exit=0 --wait={wait_s}" + (" --overlap" if is_packed else "")
    steps = f"({_STEPS}) * {runs_per_job}" if is_packed else _STEPS
    return [
        *node_setup(profile),
        "# This shell survives signals, and runs a trap only after srun has ended.",
        "trap : TERM USR1 USR2",
        "",
        "# An srun of an earlier start, on a node that was frozen, may return and end its step by number.",
        "# So the number of the agents' step differs between starts: empty steps come before this step.",
        "# A failure of an empty step ends nothing, also after `set -e` in a profile.",
        f"for _ in $(seq $(({steps}))); do",
        f"  srun {one_task} {overlap} true || :",
        "done",
        "",
        *(_OF_ONE_RUN if is_packed else ()),
        "# One agent on each node. All counts are given, since srun reads others from the environment.",
        "# After one node fails, the other nodes have time to record how they ended.",
        "# srun runs in the foreground: Slurm's signals go to the agents.",
        "# Signals are ignored while Python starts, until the agent has installed its handlers.",
        _srun([*agents, wait], profile, f"{command} {arguments}") + " && exit",
        "status=$?",
        "",
        "# If srun or the agent of node 0 was killed, the attempt is open. This step closes the attempt",
        "# and requeues the job. Agents that have not ended hold the memory, so this step requests none.",
        _srun(
            [one_task, f"{overlap} --mem=0"],
            profile,
            f"{command} --after-failure {arguments}",
        )
        + (' || echo $status >"$failed"' if is_packed else " || exit $status"),
        *(_SIDE_BY_SIDE if is_packed else ()),
    ]


_STEPS = f"${{SLURM_RESTART_COUNT:-0}} % {_STEP_NUMBERS}"
_OF_ONE_RUN = (
    "# All runs side by side, each with a log of its own. Agents share out processors and GPUs of the job.",
    "failed=$(mktemp)",
    "start() {",
    "trap : TERM USR1 USR2",
    "run=$1 submission=$2",
    "job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
    'exec >>"$run/submissions/$job.log" 2>&1 || exit',
    "",
)
_SIDE_BY_SIDE = (
    "}",
    'for place in "${!runs[@]}"; do',
    '  start "${runs[place]}" "${submissions[place]}" &',
    "done",
    "",
    "# A signal interrupts `wait`, which then has no exit code of an agent.",
    "until wait; do :; done",
    'status=$(cat "$failed")',
    'rm -f "$failed"',
    "exit ${status:-0}",
)


def _srun(options: Sequence[str], profile: Profile, task: str) -> str:
    """A command that runs `task` under srun."""
    extra = (f"--{name}" + ("" if value is True else f"={value}") for name, value in profile.srun.items())
    lines = ["srun", *options, *filter(None, [shlex.join(extra)])]
    prefix = 'bash -c "$node_setup" bash' if profile.node_setup else _IGNORE_SIGNALS
    lines += [prefix, task]
    return " \\\n  ".join(lines)


_IGNORE_SIGNALS = """sh -c 'trap "" USR1 USR2 TERM; exec "$@"' sh"""
"""Prefix of a command that ignores these signals."""
