"""The interface to a scheduler: submit jobs, find, poll and cancel them.

Each scheduler is a folder beside this module, and `jobs.schedulers.select` imports the one that is chosen.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import asks_for_gpus
from jobs.checks.finding import Finding, Unchecked
from jobs.checks.host_facts import HostFacts
from jobs.core import journal
from jobs.schedulers.inherited_variables import without_batch_system

JobStatus = Literal["pending", "running", "ended", "not_found", "unknown"]
"""`ended`: the scheduler says that the job is over. `not_found`: the scheduler does not list the job, which
has just ended or is forgotten. `unknown`: the scheduler did not answer."""


class SubmitError(RuntimeError):
    """The scheduler refused a job; the message is one line."""


class LimitReached(SubmitError):
    """The scheduler takes no more jobs of this user now, and may later."""


class Unreachable(SubmitError):
    """The scheduler did not answer, so whether it has a job is unknown."""


@dataclass(frozen=True)
class ProfileSelection:
    """The site profile that the user chose on the command line."""

    flag: str | None = None
    """`--profile`: a name or a file."""
    overrides: Sequence[str] = ()
    """`--slurm`: `KEY=VALUE`, laid over the profile."""

    @property
    def given(self) -> bool:
        return self.flag is not None or bool(self.overrides)

    @property
    def origin(self) -> str:
        """The flag by which it was given."""
        return "--profile" if self.flag is not None else "--slurm"


class SiteProfile(Protocol):
    """Options of a site for its scheduler."""

    @property
    def name(self) -> str: ...

    @property
    def gpus_per_node(self) -> int | None: ...

    def as_dict(self) -> dict[str, Any]:
        """JSON for `run.json`."""


@dataclass(frozen=True)
class Submission:
    """An announced submission of a run (see `jobs.core.journal`)."""

    run: RunDir
    number: int
    tag: str
    """Identifies the batch at the scheduler when the receipt is lost. Empty for a job submitted by hand."""
    index: int | None = None
    """Array task; None where the batch is one job."""
    place: int | None = None
    """Place among the runs of one job (`jobs.core.packing`); None for a run that has its job alone."""

    @classmethod
    def announced(cls, run: RunDir, number: int) -> Submission:
        """A submission as its journal has it."""
        intent = journal.entry(run, number).read("intent") or {}
        tag, index, place = str(intent.get("handle") or ""), intent.get("index"), intent.get("place")
        return cls(run, number, tag, index, place)


def submission_tag(run: RunDir, number: int) -> str:
    """Tag of a batch by its first submission. The hash of the folder tells runs of one name apart."""
    folder = hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:12]
    return f"disttrain:{run.sweep}/{run.name}:{number}:{folder}"


@dataclass(frozen=True)
class Batch:
    """Runs that are submitted together: a job, or an array of jobs, each of one run or of several."""

    submissions: Sequence[Submission]
    record: Mapping[str, Any]
    """`run.json` of the first run. The others differ in nothing that a batch script contains."""
    profile: SiteProfile | None
    after: Sequence[str] = ()
    """Ids of jobs that must end first. No effect where jobs run one at a time."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Ids of jobs that must end well first, by the `sweep/run` of each; empty for a run without a job. As
    `after`, no effect where jobs run one at a time: each start looks at these runs itself."""
    at_once: int | None = None
    """Largest number of these runs that may run at the same time; None: all of them."""
    runs_per_job: int = 1
    """Runs of each job, side by side on its node."""

    @property
    def name(self) -> str:
        """Job name: the run's; of several repeats without its number, of several configs the sweep's."""
        runs = [each.run for each in self.submissions]
        names = {re.sub(r"-r\d+$", "", run.name) for run in runs}
        return runs[0].name if len(runs) == 1 else names.pop() if len(names) == 1 else runs[0].sweep


@dataclass(frozen=True)
class Job:
    """A job as its scheduler lists it."""

    status: JobStatus
    message: str | None = None
    """One line: how the job ended, or what holds it up; why the scheduler did not answer."""
    cause: str | None = None
    """Why the job ended, where the scheduler knows (`disttrain.records.exit_causes.Cause`)."""
    waits_for: str | None = None
    """Reason of a pending job, in the scheduler's own word."""
    start_expected: float | None = None
    """Expected start of a pending job, in seconds since the epoch."""
    started: float | None = None
    """Start of a running job, in seconds since the epoch; None where nothing runs before its agents."""
    certain: bool = True
    """False for a job that the scheduler does not list, and for one that is alive by accounting alone."""


@dataclass(frozen=True)
class AccountedStart:
    """One start of a job by accounting, or its wait for one. Times are seconds since the epoch."""

    job_id: str
    submitted: float | None
    """Time of submission or requeue."""
    started: float | None
    ended: float | None
    elapsed_s: float
    gpus: int | None
    """None where accounting counts no GPUs."""


@dataclass(frozen=True)
class SubmitQuota:
    """Jobs that a scheduler takes now."""

    array: int = 1
    """Largest number of runs in one batch."""
    jobs: int | None = None
    """Further jobs; None where no limit is known."""
    limit: str = ""
    """The limit behind `jobs`: `the limit of 10000 jobs (MaxJobCount of the cluster)`."""


@dataclass(frozen=True)
class ScriptCheck:
    """The scheduler's answer to a batch script that is tested and not submitted."""

    accepted: bool
    message: str
    """Expected start, or the reason of the refusal; one line."""


@dataclass(frozen=True)
class ScriptPreview:
    """A batch script that would be submitted."""

    name: str
    runs: Sequence[str]
    profile: str
    options: Sequence[str]
    """Options of the script that follow from shape, limits and profile, such as `--nodes=2`. All other
    differences between scripts of one command follow from them, or are names, folders and job ids."""
    script: str | None
    """None where only the options were requested."""
    check: ScriptCheck | None
    """None where the scheduler was not asked."""


class Scheduler(ABC):
    """A place to run jobs. Job ids are strings that no other job of this scheduler ever had.

    A scheduler is a class with the abstract methods; the others have answers for one without that feature.
    """

    name: str
    """As `--cluster` and `run.json` have it."""
    title: str
    """As sentences have it."""
    one_machine: bool = False
    """Whether jobs are processes of the submitting host, one at a time, and all nodes of a job are this
    host."""
    packs: bool = False
    """Whether one job can have several runs (`resources.runs_per_node`)."""
    log_consequence: re.Pattern[str] = re.compile("(?!)")  # matches no line
    """Lines of a batch log that report the consequence of a failure, not its reason."""
    accounting: Literal["sacct"] | None = None
    """Source of `accounted`, as `usage.json` has it; None where there is no accounting."""

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why no job can be submitted or ended from here now, in one line."""

    @abstractmethod
    def submit(self, batch: Batch) -> list[str]:
        """Submit announced runs; their job ids, in order.

        Raises `SubmitError`: no job of the batch exists then, unless the error is `Unreachable`.
        """

    @abstractmethod
    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        """Submit a job of one process that runs arguments of Python after other jobs have ended; its job id.

        `job.run` is the folder of the job's journal, `profile` the recorded site profile of the runs. Raises
        `SubmitError`.
        """

    @abstractmethod
    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        """Job ids of submissions without a receipt; None where there is no job. Raises `Unreachable`."""

    @abstractmethod
    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The state of each job, in as few queries as possible."""

    @abstractmethod
    def cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        """End these jobs, pending or running; return without waiting for their end.

        `jobs` has the submission tag of each job id; None for a job that was not submitted with a tag. It has
        all runs of a job that have not ended. Returns the reason, one line, for each job that goes on. A job
        that has already ended is no failure.

        Raises `ConfigError` when the scheduler does not answer.
        """

    def check_runs_folder(self, path: Path) -> None:  # noqa: B027 - most can write anywhere
        """Raise `ConfigError` if no job could write to this folder."""

    def batch_key(self, run: RunDir, record: Mapping[str, Any], profile: SiteProfile | None) -> str:
        """Equal for runs that can be in one batch, given `run.json` and the site profile of each.

        Called only where `quota` permits a batch of several runs. Raises `ConfigError`.
        """
        return ""

    def batch_log(self, run: RunDir, submission: int, job_id: str) -> Path:
        """Output of a job outside its attempts. The file exists once the job has started."""
        return run.submissions / f"{submission:04d}.log"

    def cluster_name(self) -> str | None:
        """The cluster in which job ids are unique; None if they are unique anyway, or without an answer."""
        return None

    def node_names(self) -> list[str] | None:
        """Nodes of the cluster by name; None where each job runs on this host, or without an answer."""
        return None

    def host_of(self, job_id: str) -> str | None:
        """The only host that can end this job; None where any can."""
        return None

    def accounted(self, job_ids: Sequence[str]) -> dict[str, list[AccountedStart]]:
        """Starts of each job in accounting, oldest first. Raises `Unreachable`."""
        return {}

    def uses_gpus(self, device: str, ranks: int) -> bool:
        """Whether each of `ranks` ranks takes a GPU, given `resources.device`. Shared GPUs do not count."""
        return asks_for_gpus(device)

    def processors(self) -> int | None:
        """Processors of all ranks of a job together; None where each node of a job is a machine."""
        return None

    def quota(self) -> SubmitQuota:
        """How many jobs may be submitted now."""
        return SubmitQuota()

    def profile(self, recorded: Mapping[str, Any] | None) -> SiteProfile | None:
        """The site profile of a submission; `recorded` is the one in `run.json` of a run that is resumed.

        None where there is no site. Raises `ConfigError`.
        """
        return None

    def submission_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables of the submitting shell that jobs inherit."""
        return without_batch_system(environ)

    def warnings(self, environ: Mapping[str, str]) -> list[str]:
        """Variables of the shell that have no effect on a submission; one line each."""
        return []

    def previews(self, batches: Iterable[Batch], *, test: bool, complete: bool) -> list[ScriptPreview]:
        """Scripts that `submit` would hand over, with `test` checked by the scheduler.

        Without `complete`, only the first preview has the text of its script. Raises `ConfigError` where the
        scheduler cannot check scripts.
        """
        if test:
            raise ConfigError(f"--test-only needs Slurm, and these runs go to {self.title}")
        return []


@dataclass(frozen=True)
class Diagnosis:
    """Result of a doctor."""

    subject: str
    """The examined cluster or machine, in one line."""
    host: HostFacts | None
    """This host and the runs folder; None where their probe failed."""
    cluster: dict[str, Any] | None
    """Values that were read, as JSON."""
    findings: list[Finding]
    unchecked: list[Unchecked]


class Doctor(Protocol):
    """Examines a scheduler, this machine and the runs folder."""

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        """Examine; with `job`, also on a node, in a job of at most 5 minutes."""

    def draft_profile(self) -> str:
        """Text of a site profile drafted from the present use. Raises `ConfigError`."""

    def draft_files(self, config: Mapping[str, Any]) -> tuple[str, str]:
        """The text of such a profile, and of a batch script by which a user submits runs with its options and
        the resources of `config`. Raises `ConfigError`."""


def is_submitted_to(scheduler: Scheduler, cluster: str | None, cluster_name: str | None) -> bool:
    """Whether a submission with these fields of its intent has its job at this scheduler, on this cluster.

    Clusters that share a file system each have a scheduler, and give the same job ids to different jobs. A
    submission by older code has no `cluster_name`, and counts as one to this cluster.
    """
    if cluster != scheduler.name:
        return False
    return cluster_name is None or scheduler.cluster_name() in (None, cluster_name)
