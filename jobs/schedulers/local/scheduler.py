"""The local scheduler: the interface of `jobs.schedulers.interface` on the queue of this machine.

Jobs are detached processes, not children of the submitter, and continue when its terminal closes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError, message_of
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import asks_for_gpus
from jobs.core import journal, processes, run_code
from jobs.schedulers.inherited_variables import without_batch_system
from jobs.schedulers.interface import (
    Batch,
    Job,
    JobStatus,
    ProfileSelection,
    Scheduler,
    Submission,
    SubmitError,
)
from jobs.schedulers.local import fifo_queue


class LocalScheduler(Scheduler):
    """Runs one job at a time, in submission order (`fifo_queue`). Job ids are `host:ticket`."""

    name = "local"
    title = "this machine"
    one_machine = True

    def __init__(self, selection: ProfileSelection | None = None) -> None:
        """Raises `ConfigError` for a selected site profile."""
        if selection is not None and selection.given:
            raise ConfigError(f"{selection.origin} is for Slurm, and these runs go to this machine")

    def unavailable(self) -> str | None:
        return None

    def submit(self, batch: Batch) -> list[str]:
        return [self._submit(each.run, each.number, batch.record) for each in batch.submissions]

    def _submit(self, run: RunDir, submission: int, record: Mapping[str, Any]) -> str:
        return _start(run, submission, run_code.code_of_run(run, record))

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        """Queue the command. `job_ids` were submitted earlier, so they run first.

        The waiting process runs this code. `command[0]` may be in a copy of older code.
        """
        return _start(job.run, job.number, run_code.CODE_ROOT, command)

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        tickets = [fifo_queue.find(ticket_label(each.run, each.number)) for each in submissions]
        return [None if ticket is None else f"{processes.host()}:{ticket}" for ticket in tickets]

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return {job_id: Job(_status(job_id)) for job_id in job_ids}

    def cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        for job_id in jobs:
            ticket = _ticket(job_id)
            label = fifo_queue.label(ticket) if ticket is not None else None
            if ticket is None or label is None:
                continue
            run, submission = RunDir(Path(label["run"])), label["submission"]
            holder = journal.entry(run, submission).read("holder")
            if holder is None:
                journal.revoke(run, submission, "cancelled", "cancelled before it started")
                fifo_queue.discard(ticket)  # a job that starts later has no ticket, and exits
            elif processes.is_alive(holder["process"]):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(holder["process"]["pid"], signal.SIGTERM)
        return {}

    def host_of(self, job_id: str) -> str | None:
        return job_id.rpartition(":")[0]

    def uses_gpus(self, device: str, ranks: int) -> bool:
        """`auto` uses the GPUs of this machine if there is one for each rank."""
        return count_gpus() >= ranks if device == "auto" else asks_for_gpus(device)

    def processors(self) -> int | None:
        return len(os.sched_getaffinity(0))


SCHEDULER = LocalScheduler


def ticket_label(run: RunDir, submission: int) -> dict[str, Any]:
    """Content of a job's ticket."""
    run = RunDir(run.path.absolute())
    claim = journal.entry(run, submission).path("claim")
    return {"run": str(run.path), "submission": submission, "settled_by": str(claim)}


@functools.cache
def count_gpus() -> int:
    """NVIDIA GPUs of this machine. Cached: a sweep checks thousands of runs."""
    return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev"))


def _ticket(job_id: str) -> int | None:
    """Ticket of a job of this host; None for a job of another host."""
    host, _, ticket = job_id.rpartition(":")
    return int(ticket) if host == processes.host() and ticket.isdigit() else None


def _status(job_id: str) -> JobStatus:
    ticket = _ticket(job_id)
    if ticket is None:
        return "unknown"
    label = fifo_queue.label(ticket)
    if label is None or fifo_queue.ticket_state(ticket) == "expired":
        return "ended"
    claimed = journal.entry(RunDir(Path(label["run"])), label["submission"]).path("claim").exists()
    return "running" if claimed else "pending"


def _start(run: RunDir, submission: int, code: Path, command: Sequence[str] = ()) -> str:
    """Take a ticket and start its supervisor, of the code copy `code`; return the job id."""
    ticket = fifo_queue.take(ticket_label(run, submission))
    job_id = f"{processes.host()}:{ticket}"
    supervisor = ["-m", "jobs.schedulers.local.supervisor", str(run.path.absolute())]
    supervisor += ["--submission", str(submission), "--ticket", str(ticket), "--job-id", job_id]
    log = run.submissions.absolute() / f"{submission:04d}.log"
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = without_batch_system(os.environ) | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    try:
        start_detached([sys.executable, *supervisor, "--command", *command], log, environ)
    except OSError as error:
        fifo_queue.discard(ticket)
        raise SubmitError(f"cannot start a process for {run.path}: {message_of(error)}") from None
    return job_id


def start_detached(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    """Start a process in its own session, adopted by init, with its output in `log`.

    Raises `OSError`.
    """
    with _terminal_signals_blocked():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with open(log, "ab") as output:
                    subprocess.Popen(
                        command,
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                code = 0
            except OSError as error:
                code = error.errno or 1
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def _terminal_signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGHUP in this block and in the processes started within it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
