"""Jobs by squeue and sacct, their states, and the limits of the queue: queries of the login node."""

from __future__ import annotations

import pwd
import re
import shutil
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from jobs.schedulers.interface import AccountedStart, Job, JobStatus, SubmitQuota
from jobs.schedulers.slurm.commands import (
    EPOCH,
    TIMEOUT_S,
    SlurmCommandError,
    gpus_of_tres,
    leading_number,
    query,
    query_or_none,
    refusal,
    settings,
    time,
)

DEFAULT_ARRAY = 1001
"""Slurm's default of MaxArraySize, for a controller that does not answer."""
PING_S = 5.0
_IDS_AT_ONCE = 10_000
"""Jobs of one query. Linux limits one argument of a command to 128 KiB."""
_NO_REASON = ("", "None", "(null)", "N/A")
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all")


def answers(timeout_s: float = PING_S) -> bool:
    """Whether sbatch is installed and a Slurm controller answers."""
    if shutil.which("sbatch") is None:
        return False
    done = query_or_none(["scontrol", "ping"], timeout_s)
    return done is not None and " is UP" in done


def jobs_by_comment() -> dict[str, str]:
    """Jobs and arrays that the controller lists, of any user, ended ones too. Raises `SlurmCommandError`."""
    rows = (line.strip().partition("|") for line in query([*_SQUEUE, "-o", "%i|%k"]).splitlines())
    return {comment: job_id.partition("_")[0] for job_id, bar, comment in rows if bar}


def node_names() -> list[str] | None:
    """Names of all nodes in partitions, hidden ones too; None if Slurm does not answer."""
    listing = query_or_none(["sinfo", "--noheader", "--all", "--Node", "-o", "%N"], timeout_s=10)
    return None if listing is None else sorted(set(listing.split()))


@dataclass(frozen=True)
class QueueEntry:
    """A job as squeue lists it."""

    state: str
    start: float | None
    """Start or expected start, in seconds since the epoch."""
    reason: str | None
    """Why the job is pending."""
    comment: str = ""


def queue(job_ids: Iterable[str]) -> dict[str, QueueEntry]:
    """The jobs of these that the controller lists, with the other tasks of their arrays.

    Jobs of other users and jobs that ended minutes ago are included. `scontrol ping` is called first, because
    squeue retries for minutes if the controller is down. Raises `SlurmCommandError`.
    """
    whole = sorted({job_id.partition("_")[0] for job_id in job_ids})
    if not whole:
        return {}
    ping = query_or_none(["scontrol", "ping"], PING_S) or ""
    if " is DOWN" in ping and " is UP" not in ping:  # a backup controller may have taken over
        raise SlurmCommandError("scontrol ping: the controller is down")
    # squeue gets all jobs from the controller anyway.
    selection = [f"--jobs={','.join(whole)}"] if len(whole) <= _IDS_AT_ONCE else []
    try:
        listing = query([*_SQUEUE, *selection, "-o", "%i|%T|%S|%r|%k"], environ=EPOCH)
    except SlurmCommandError as error:
        if "Invalid job id" in str(error):  # squeue refuses the id of a single job that it does not list
            return {}
        raise
    rows = [line.strip().split("|", 4) for line in listing.splitlines()]
    return {
        row[0]: QueueEntry(row[1], time(row[2]), None if row[3] in _NO_REASON else row[3], row[4])
        for row in rows
        if len(row) == 5
    }


def cancel(job_ids: Iterable[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Cancel jobs; None on success, else Slurm's message in one line. Some of the jobs may be cancelled."""
    return refusal(["scancel", *job_ids], timeout_s)


_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES")


@dataclass(frozen=True)
class JobRecord(AccountedStart):
    """A line of sacct: one start of a job, or a pending job.

    The job id of an array's task is `ARRAYID_INDEX`; tasks that never started share `ARRAYID_[0-3,5]`.
    """

    state: str
    """The first word: `CANCELLED by 1000` is `CANCELLED`."""
    exit_code: str
    cancelled_by: str | None = None
    """Name of the user who cancelled the job, where accounting has it."""

    def is_of(self, job_id: str) -> bool:
        """Whether this record belongs to the job `job_id`."""
        if "[" not in self.job_id:
            return self.job_id == job_id
        array, _, index = job_id.partition("_")
        return self.job_id.partition("_")[0] == array and index.isdigit() and int(index) in self._indices()

    def _indices(self) -> set[int]:
        found: set[int] = set()
        for part in re.findall(r"\d+(?:-\d+)?", self.job_id[self.job_id.index("[") :].partition("%")[0]):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
        return found


def records(job_ids: Iterable[str]) -> list[JobRecord]:
    """All records of these jobs and of the other tasks of their arrays, oldest first.

    Raises `SlurmCommandError`.
    """
    whole = sorted({job_id.partition("_")[0] for job_id in job_ids})
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
    command.append(f"--format={','.join(_FIELDS)}")
    found = []
    for first in range(0, len(whole), _IDS_AT_ONCE):
        ids = ",".join(whole[first : first + _IDS_AT_ONCE])
        output = query([*command, f"--jobs={ids}"], environ=EPOCH)
        rows = [line.strip().split("|") for line in output.splitlines()]
        found += [_record(row) for row in rows if len(row) == len(_FIELDS)]
    return sorted(found, key=lambda record: record.submitted or 0.0)


def by_job(found: Sequence[JobRecord], job_ids: Iterable[str]) -> dict[str, list[JobRecord]]:
    """Records of each job. Without any, the shared record of the tasks of its array that never started."""
    own: dict[str, list[JobRecord]] = defaultdict(list)
    shared: dict[str, list[JobRecord]] = defaultdict(list)
    for record in found:
        own[record.job_id].append(record)
        if "[" in record.job_id:
            shared[record.job_id.partition("_")[0]].append(record)
    return {
        job_id: own.get(job_id)
        or [record for record in shared.get(job_id.partition("_")[0], ()) if record.is_of(job_id)]
        for job_id in job_ids
    }


def _record(row: Sequence[str]) -> JobRecord:
    job_id, state, exit_code, submitted, started, ended, elapsed, tres = row
    return JobRecord(
        job_id=job_id,
        submitted=time(submitted),
        started=time(started),
        ended=time(ended),
        elapsed_s=float(elapsed) if elapsed.isdigit() else 0.0,
        gpus=gpus_of_tres(tres),
        state=(state.split() or [""])[0],
        exit_code=exit_code,
        cancelled_by=_user_name(state.removeprefix("CANCELLED by ")),
    )


def _user_name(uid: str) -> str | None:
    if not uid.isdigit():
        return None
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except KeyError:
        return f"uid {uid}"


_PENDING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "EXPEDITING",
}
_ENDINGS: dict[str, tuple[str | None, str]] = {
    "CANCELLED": ("cancelled", "its job was cancelled"),
    "TIMEOUT": ("timeout", "its job was ended at its time limit"),
    "DEADLINE": ("timeout", "its job was ended at the deadline that it was submitted with"),
    "OUT_OF_MEMORY": ("out_of_memory", "its job used more memory than it requested"),
    "PREEMPTED": ("preempted", "its job was pre-empted, and not requeued"),
    "NODE_FAIL": ("lost", "a node of its job failed"),
    "BOOT_FAIL": ("launch_failed", "a node of its job did not boot"),
    "FAILED": (None, "its job failed"),
    "REVOKED": (None, "its job went to another cluster of the federation"),
}
"""Cause and message of each final state. A cause of None is derived from the progress of the run."""


def from_queue(queued: QueueEntry) -> Job:
    """The job of an entry of squeue."""
    if queued.state in _PENDING:
        return Job("pending", waits_for=queued.reason, start_expected=queued.start)
    if queued.state in ("STOPPED", "SUSPENDED"):
        return Job("running", f"{queued.state.lower()} by Slurm", started=queued.start)
    return _ended(queued.state) or Job("running", started=queued.start)


def is_ending(queued: QueueEntry) -> bool:
    """Whether the job of an entry of squeue has ended or is ending."""
    return queued.state == "COMPLETING" or _ended(queued.state) is not None


def from_accounting(own: Sequence[JobRecord], job_id: str, arrays: Container[str] = ()) -> Job:
    """A job that squeue does not list, from its sacct records; `arrays` has the arrays that squeue lists."""
    if not own:
        array, task, _ = job_id.partition("_")
        if task and array in arrays:
            return Job("ended", "its task was removed from the array before it started", "cancelled")
        return Job("not_found", "neither squeue nor sacct lists its job", certain=False)
    last = own[-1]
    job = _ended(last.state, last.exit_code)
    if job is not None:
        return replace(job, message=f"{job.message} by {last.cancelled_by}") if last.cancelled_by else job
    # squeue may hide jobs of other users. Accounting may also have missed the end of the job.
    status: JobStatus = "pending" if last.state in _PENDING else "running"
    return Job(status, f"squeue does not list its job, which is {last.state} by sacct", certain=False)


def _ended(state: str, exit_code: str = "") -> Job | None:
    if state == "COMPLETED":  # the agent's record of the end may reach the file system later
        return Job("not_found", "its job completed without a recorded end")
    if state not in _ENDINGS:
        return None
    cause, message = _ENDINGS[state]
    if state == "FAILED" and exit_code:
        code, _, number = exit_code.partition(":")
        message += f" (exit code {code})" if number in ("", "0") else f" (signal {number})"
    return Job("ended", message, cause)


def quota() -> SubmitQuota:
    """Number of jobs that the controller accepts now. If a query fails, its limit is left out.

    Limits of an account or a QOS are not read, because sbatch refuses the first job above such a limit with
    its name. MaxJobCount is read, because sbatch waits for minutes when this limit is reached.
    """
    if not answers():
        return SubmitQuota(array=DEFAULT_ARRAY)
    values = settings(TIMEOUT_S)
    tasks = re.search(r"max_array_tasks=(\d+)", values.get("SchedulerParameters", ""))
    sizes = [values.get("MaxArraySize", ""), tasks[1] if tasks else ""]
    array = max(1, min((int(size) for size in sizes if size.isdigit()), default=1))
    most = leading_number(values.get("MaxJobCount"))
    listing = query_or_none([*_SQUEUE, "-o", "%i"]) if most else None
    if not most or listing is None:
        return SubmitQuota(array)
    left = max(0, most - len(listing.split()))
    return SubmitQuota(array, left, f"the limit of {most} jobs (MaxJobCount of the cluster)")
