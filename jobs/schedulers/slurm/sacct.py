"""Job records of Slurm's accounting (`sacct`). A requeued job has one record for each start."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.schedulers.base import AccountedStart
from jobs.schedulers.slurm.commands import EPOCH, query, time

_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES", "NNodes")
_GPUS = re.compile(r"gres/gpu(:[^=,]+)?=(\d+)")


@dataclass(frozen=True)
class JobRecord:
    """A line of sacct: one start of a job, or a pending job. Times are seconds since the epoch."""

    job_id: str
    """A task of an array is `ARRAYID_INDEX`; tasks that never started share a line: `ARRAYID_[0-3,5]`."""
    state: str
    """The first word: `CANCELLED by 1000` is `CANCELLED`."""
    exit_code: str
    submitted: float | None
    """Time of submission or requeue."""
    started: float | None
    ended: float | None
    elapsed_s: float
    gpus: int | None
    """None if accounting does not count GPUs."""
    nodes: int
    cancelled_by: str | None = None
    """Name of the user who cancelled the job, where accounting has it."""

    def is_of(self, job_id: str) -> bool:
        """Whether this record belongs to the job `job_id`."""
        if "[" not in self.job_id:
            return self.job_id == job_id
        array, _, index = job_id.partition("_")
        return self.job_id.partition("_")[0] == array and index.isdigit() and int(index) in self._indices()

    def as_start(self) -> AccountedStart:
        """The record without the fields that only Slurm has."""
        return AccountedStart(
            self.job_id, self.submitted, self.started, self.ended, self.elapsed_s, self.gpus
        )

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
    if not whole:
        return []
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
    output = query([*command, f"--jobs={','.join(whole)}", f"--format={','.join(_FIELDS)}"], environ=EPOCH)
    rows = [line.strip().split("|") for line in output.splitlines()]
    found = [_record(row) for row in rows if len(row) == len(_FIELDS)]
    return sorted(found, key=lambda record: record.submitted or 0.0)


def of_job(found: Sequence[JobRecord], job_id: str) -> list[JobRecord]:
    """Records of one job. Without any, the shared record of the tasks of its array that never started."""
    own = [record for record in found if record.job_id == job_id]
    return own or [record for record in found if record.is_of(job_id)]


def _record(row: Sequence[str]) -> JobRecord:
    job_id, state, exit_code, submitted, started, ended, elapsed, tres, nodes = row
    return JobRecord(
        job_id=job_id,
        state=(state.split() or [""])[0],
        exit_code=exit_code,
        submitted=time(submitted),
        started=time(started),
        ended=time(ended),
        elapsed_s=float(elapsed) if elapsed.isdigit() else 0.0,
        gpus=gpus(tres),
        nodes=int(nodes) if nodes.isdigit() else 0,
        cancelled_by=_user_name(state.removeprefix("CANCELLED by ")),
    )


def _user_name(uid: str) -> str | None:
    if not uid.isdigit():
        return None
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except KeyError:
        return f"uid {uid}"


def gpus(tres: str) -> int | None:
    """Number of GPUs in AllocTRES: 8 for `billing=8,gres/gpu=8,gres/gpu:h100=8`; None without `gres/gpu`."""
    found = _GPUS.findall(tres)
    if not found:
        return None
    total = [int(many) for kind, many in found if not kind]
    return total[0] if total else sum(int(many) for _, many in found)
