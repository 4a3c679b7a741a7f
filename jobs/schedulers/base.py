"""Where jobs run, behind a few verbs: submit, find, poll, cancel, and what the limits are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from disttrain.records.run_directory import RunDir

JobStatus = Literal["pending", "running", "ended", "not_found", "unknown"]
"""`gone` is the cluster's word that the job is over; `missing`, that it has no word on it: just ended, or
forgotten; `unknown` means it could not be asked."""


class SubmitError(RuntimeError):
    """The cluster refused a job; the message is one line."""


class LimitReached(SubmitError):
    """It takes no more jobs now, and may later."""


class Unreachable(SubmitError):
    """It could not be asked: whether it has a job is not known."""


@dataclass(frozen=True)
class Submission:
    """An announced submission of a run (see `jobs.core.journal`)."""

    run: RunDir
    number: int


@dataclass(frozen=True)
class Job:
    """What a cluster says of a job."""

    status: JobStatus
    message: str | None = None
    """One line: how it ended, what holds it up; where it could not be asked, why."""
    cause: str | None = None
    """Why it ended, where the cluster knows (`disttrain.records.causes.Cause`)."""
    waits_for: str | None = None
    """What a pending job waits for, in the cluster's own word."""
    start_expected: float | None = None
    """When a pending job should start, in seconds since the epoch."""


@dataclass(frozen=True)
class Limits:
    """What the nodes of one job have to share."""

    processors: int | None = None
    """Processors of all its ranks together; None where each node of a job is a machine."""


@dataclass(frozen=True)
class SubmitQuota:
    """How many more jobs a cluster takes now."""

    array: int = 1
    """How many runs of one shape may be submitted at once."""
    jobs: int | None = None
    """None where no limit is known."""
    why: str = ""
    """Which limit that is: `the limit of 10 jobs (MaxSubmitJobs of account physics)`."""


class Scheduler(Protocol):
    """A place to run jobs. Job ids are strings that no other job of this cluster ever had."""

    name: str

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        """Hand over announced submissions of one shape, as one batch; their job ids, in order.

        Raises `SubmitError`: none of them is there then, unless it is `Unreachable`.
        """

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        """Hand over a small job of one process, whose journal is `job.run`: this command of Python's, once
        the jobs named are over; the job id. Raises `SubmitError`."""

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        """The jobs of submissions whose receipts were never written; None where there is no job.

        Raises `Unreachable`.
        """

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """What became of each job, in as few questions as possible."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs, waiting or running; returns without waiting for their end.

        Raises `ConfigError` when the cluster does not answer.
        """

    def limits(self) -> Limits:
        """What a job has to get by with here."""

    def room(self, profile: Mapping[str, Any] | None) -> SubmitQuota:
        """How many more jobs with this site profile it takes now."""

    def profile(self, recorded: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The site profile for `run.json`; `recorded` is the one it has, where a run goes on as it was.

        None where there is no site. Raises `ConfigError`.
        """


def uses_gpus(device: str, cluster: str, ranks: int) -> bool:
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
