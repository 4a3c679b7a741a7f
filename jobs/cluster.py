"""Where jobs run, behind five verbs: submit, find, poll many, cancel, limits."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from disttrain.errors import ConfigError
from disttrain.rundir import RunDir

ClusterName = Literal["local", "slurm"]
JobStatus = Literal["pending", "running", "gone", "unknown"]
"""`gone` is the cluster's word that the job is over; `unknown` means it could not be asked."""


class SubmitError(RuntimeError):
    """The cluster refused a job; the message is one line."""


@dataclass(frozen=True)
class Limits:
    """What the nodes of one job have to share."""

    processors: int | None = None
    """Processors of all its ranks together; None where each node of a job is a machine."""


class Cluster(Protocol):
    """A place to run jobs. Job ids are strings that no other job of this cluster ever had."""

    name: ClusterName

    def submit(self, run: RunDir, submission: int) -> str:
        """Hand over an announced submission; the job id. Raises `SubmitError`."""

    def find(self, run: RunDir, submission: int) -> str | None:
        """The job of a submission whose receipt was never written, if there is one."""

    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What became of each job, in as few questions as possible."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs, waiting or running; returns without waiting for their end."""

    def limits(self) -> Limits:
        """What a job has to get by with here."""


def choose(name: str = "auto") -> Cluster:
    """The cluster of that name; `auto` is Slurm when its controller answers, else this machine.

    Where Slurm is installed and yet not chosen, says so on stderr.
    """
    from jobs.slurm.commands import answers

    if name not in ("auto", "local", "slurm"):
        raise ConfigError(f"--cluster={name!r} is not one of auto, slurm, local")
    if name == "local":
        return named("local")
    if answers():
        return named("slurm")
    if name == "slurm":
        raise ConfigError("--cluster=slurm: no Slurm controller answers (`scontrol ping`)")
    if shutil.which("sbatch") is not None:
        print(
            "warning: sbatch is here but no Slurm controller answers (`scontrol ping`): using this machine",
            file=sys.stderr,
        )
    return named("local")


def named(name: ClusterName) -> Cluster:
    """The cluster of that name, whether or not it answers now."""
    from jobs.local import LocalCluster
    from jobs.slurm.cluster import SlurmCluster

    return SlurmCluster() if name == "slurm" else LocalCluster()


def uses_gpus(device: str, cluster: ClusterName, ranks: int) -> bool:
    """Whether each rank of a run takes a GPU, given its `resources.device`.

    A Slurm job gets what it asks for, so there only `cpu` means none; on this machine `auto` takes what
    there is. A GPU that ranks share is not asked for.
    """
    if device == "auto" and cluster == "local":
        return gpus_here() >= ranks
    return device not in ("cpu", "shared")


def gpus_here() -> int:
    """NVIDIA GPUs of this machine."""
    return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev"))
