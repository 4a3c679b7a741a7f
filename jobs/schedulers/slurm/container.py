"""The container of a run's ranks on one node, by its site profile. The agent is outside.

Apptainer runs each command in a container of its own. Pyxis is a part of srun, whose tasks would be no
children of the agent: so a step of one task keeps a container open, and the agent's children enter its
namespaces. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.checks.rank_python import RankContainer
from jobs.core import processes
from jobs.core.log_text import read_tail
from jobs.node.allocation import Allocation, poll_until
from jobs.node.peers import CannotStart
from jobs.schedulers.inherited_variables import outside_job
from jobs.schedulers.slurm.commands import CONSEQUENCE

_HOLD = 'trap "" HUP INT TERM USR1 USR2; echo $$ >"$1"; while [ -s "$1" ] && kill -0 "$2"; do sleep 1; done'
"""Keep the container open as long as the file with the process's id, and the agent, exist."""
_IGNORE_SIGNALS = 'trap "" USR1 USR2; exec "$@"'
"""As `processes.spawn` does for the ranks: Apptainer resets signals to their defaults."""


@contextlib.contextmanager
def opened(
    container: Mapping[str, Any], folders: Sequence[Path], memory: Path, within_s: float, job: Allocation
) -> Iterator[RankContainer]:
    """The container of a recorded profile, with `folders` and `memory`, that of the node, at their paths.

    Raises `CannotStart` and `JobEnded`.
    """
    folders = [*folders, memory]
    if container["kind"] == "apptainer":
        words = [_path_of("apptainer"), *of_apptainer(container, folders), "sh", "-c", _IGNORE_SIGNALS, "sh"]
        yield RankContainer(words, precedence="APPTAINERENV_")
        return
    held, log = memory / "container", memory / "container.log"
    with open(log, "wb") as output:
        step = processes.spawn(
            [*_step(), *of_pyxis(container, folders), *_holder(held)],
            log=output.fileno(),
            env=outside_job(os.environ),
        )

    def pid() -> int | None:
        text = read_tail(held)
        if not text and not processes.is_running(step):
            lines = [line for line in read_tail(log).splitlines() if not CONSEQUENCE.search(line)]
            raise CannotStart(f"Pyxis started no container: {lines[-1].strip() if lines else 'srun failed'}")
        return int(text) if text.endswith("\n") else None

    if (holder := poll_until(pid, within_s, job)) is None:
        raise CannotStart(f"Pyxis started no container within {within_s:g} s")
    yield _entered(holder)


def of_apptainer(container: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    """Arguments of apptainer, which those of a command follow."""
    bound = [word for mount in _mounts(container, folders) for word in ("--bind", mount)]
    return ["exec", *bound, *container["arguments"], container["image"]]


def of_pyxis(container: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    """Options of srun."""
    mounts = ",".join(_mounts(container, folders))
    return [
        f"--container-image={container['image']}",
        f"--container-mounts={mounts}",
        *container["arguments"],
    ]


def _mounts(container: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    return [*(f"{folder}:{folder}" for folder in dict.fromkeys(folders)), *container["mounts"]]


def _step() -> list[str]:
    """A step of one task on this node, which uses resources of the agent's step."""
    job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    return [
        *("srun", f"--jobid={job}", f"--nodelist={node}", "--overlap", "--mem=0"),
        *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--cpu-bind=none"),
        "--mpi=none",
    ]


def _holder(held: Path) -> list[str]:
    return ["sh", "-c", _HOLD, "sh", str(held), str(os.getpid())]


def _entered(holder: int) -> RankContainer:
    """The container of a process, with its variables but for those of its step."""
    proc = Path(f"/proc/{holder}")
    pairs = (proc / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    is_other_user = os.readlink(proc / "ns/user") != os.readlink("/proc/self/ns/user")
    user = ["--user", "--preserve-credentials"] if is_other_user else []
    words = [_path_of("nsenter"), f"--target={holder}", "--mount", "--wd", *user, "--"]
    return RankContainer(words, outside_job(variables))


def _path_of(command: str) -> str:
    """Its path on this node, as the ranks have the image's `PATH`."""
    path = shutil.which(command)
    if path is None:
        raise CannotStart(f"{command} is not installed on {processes.host()}")
    return path
