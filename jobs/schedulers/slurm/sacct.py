"""Job records of Slurm's accounting (`sacct`). A requeued job has one record for each start."""

from __future__ import annotations

import pwd
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.schedulers.interface import AccountedStart
from jobs.schedulers.slurm.commands import EPOCH, query, time
from jobs.schedulers.slurm.gres import gpus_of_tres

_IDS_AT_ONCE = 10_000
"""Jobs of one query. Linux limits one argument of a command to 128 KiB."""
_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES", "NNodes")


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
    job_id, state, exit_code, submitted, started, ended, elapsed, tres, nodes = row
    return JobRecord(
        job_id=job_id,
        state=(state.split() or [""])[0],
        exit_code=exit_code,
        submitted=time(submitted),
        started=time(started),
        ended=time(ended),
        elapsed_s=float(elapsed) if elapsed.isdigit() else 0.0,
        gpus=gpus_of_tres(tres),
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
