"""Where jobs run, behind five verbs: submit, find, poll many, cancel, limits."""

from __future__ import annotations

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
    """What one job may ask for, and how many may wait. None: no limit is known."""

    nodes: int | None = None
    cpus_per_node: int | None = None
    jobs: int | None = None


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
        """What this cluster allows."""


def choose(name: str = "auto") -> Cluster:
    """The cluster of that name; `auto` is Slurm when its controller answers, else this machine."""
    from jobs.local import LocalCluster
    from jobs.slurm import SlurmCluster, answers

    if name not in ("auto", "local", "slurm"):
        raise ConfigError(f"--cluster={name!r} is not one of auto, slurm, local")
    if name == "auto":
        name = "slurm" if answers() else "local"
    elif name == "slurm" and not answers():
        raise ConfigError("--cluster=slurm: no Slurm controller answers (`scontrol ping`)")
    return SlurmCluster() if name == "slurm" else LocalCluster()
