"""Translate Slurm's job states. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from jobs.schedulers.interface import Job, JobStatus
from jobs.schedulers.slurm.sacct import JobRecord
from jobs.schedulers.slurm.squeue import QueueEntry

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
