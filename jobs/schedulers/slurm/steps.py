"""Lines of a batch script: the environment of the job, its set-up, and the steps that start agents. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.schedulers.slurm.profile import Profile

_STEP_NUMBERS = 4
"""The number of the agents' step is the number of earlier starts, modulo this.

Two starts share it only if they are a multiple of this apart. More numbers would cost more empty steps, each
a request to the controller before the agents start."""
ENVIRONMENT = (
    "# Variables of a launcher or an allocation around the submitting shell would change srun and the ranks.",
    "unset ${!SRUN_@} ${!SBATCH_@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} ${!SLURM_GPU_BIND@}",
    "unset ${!SLURM_STEP@} MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK",
    "# Slurm sets these two from sbatch's options. srun would ask for the GPUs of all nodes on one node, and",
    "# refuse a number of processors that differs. Without them, each step gets all GPUs of its nodes.",
    "unset SLURM_GPUS SLURM_TRES_PER_TASK",
    "# The nodes get all other variables, also if the site submits with --export=NONE.",
    "export SLURM_EXPORT_ENV=ALL",
    "",
)


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
    nodes: str, cpus: str, profile: Profile, folders: Sequence[str], task: Sequence[str], wait_s: int
) -> list[str]:
    """Lines that start an agent on each node, and a step after a failure. Only `profile` is not quoted.

    `task` is the command of an agent and its arguments. srun ends agents `wait_s` seconds after the first.
    """
    command, arguments = task
    agents = [f"--nodes={nodes} --ntasks={nodes}", f"--ntasks-per-node=1 --cpus-per-task={cpus}"]
    one_task = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1"
    overlap = "--relative=0 --overlap"
    wait = f"--kill-on-bad-exit=0 --wait={wait_s}"
    return [
        *node_setup(profile),
        "# This shell survives signals, and runs a trap only after srun has ended.",
        "trap : TERM USR1 USR2",
        "",
        "# An srun of an earlier start, on a node that was frozen, may return and end its step by number.",
        "# So the number of the agents' step differs between starts: empty steps come before this step.",
        "# A failure of an empty step ends nothing, also after `set -e` in a profile.",
        f"for _ in $(seq $((${{SLURM_RESTART_COUNT:-0}} % {_STEP_NUMBERS}))); do",
        f"  srun {one_task} {overlap} true || :",
        "done",
        "",
        "# One agent on each node. All counts are given, since srun reads others from the environment.",
        "# After one node fails, the other nodes have time to record how they ended.",
        "# srun runs in the foreground: Slurm's signals go to the agents.",
        "# Signals are ignored while Python starts, until the agent has installed its handlers.",
        _srun([*agents, wait], profile, folders, f"{command} {arguments}") + " && exit",
        "status=$?",
        "",
        "# If srun or the agent of node 0 was killed, the attempt is open. This step closes the attempt",
        "# and requeues the job. Agents that have not ended hold the memory, so this step requests none.",
        _srun(
            [one_task, f"{overlap} --mem=0"],
            profile,
            folders,
            f"{command} --after-failure {arguments}",
        )
        + " || exit $status",
    ]


def _srun(options: Sequence[str], profile: Profile, folders: Sequence[str], task: str) -> str:
    """A command that runs `task` under srun, in the container of the profile if it has one."""
    lines = ["srun", *options]
    extra = [
        shlex.quote(f"--{name}" + ("" if value is True else f"={value}"))
        for name, value in profile.srun.items()
    ]
    if extra:
        lines.append(" ".join(extra))
    if profile.container is not None and profile.container.kind == "apptainer":
        # apptainer starts slowly, too, and resets signals to their defaults for its child
        lines.append(_IGNORE_SIGNALS)
    prefix = 'bash -c "$node_setup" bash' if profile.node_setup else _IGNORE_SIGNALS
    lines += [*_container(profile, folders), prefix, task]
    return " \\\n  ".join(lines)


_IGNORE_SIGNALS = """sh -c 'trap "" USR1 USR2 TERM; exec "$@"' sh"""
"""Prefix of a command that ignores these signals."""


def _container(profile: Profile, folders: Sequence[str]) -> list[str]:
    """Arguments that run the rest of the command in a container, with code and runs at their host paths."""
    container = profile.container
    if container is None:
        return []
    mounts = [f"{folder}:{folder}" for folder in folders] + [shlex.quote(mount) for mount in container.mounts]
    arguments = [shlex.quote(argument) for argument in container.arguments]
    image = shlex.quote(container.image)
    if container.kind == "pyxis":
        return [" ".join([f"--container-image={image} --container-mounts={','.join(mounts)}", *arguments])]
    bound = " ".join(f"--bind {mount}" for mount in mounts)
    return [" ".join(["apptainer exec", bound, *arguments, image])]
