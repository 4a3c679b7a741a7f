"""This machine as a cluster: submitit's local executor, a queue, and a supervisor for each job.

submitit's local executor refuses more than one node, ends its job with the foreground process group and
with its own timeout, and sets CUDA_VISIBLE_DEVICES. So its task only starts `jobs.schedulers.local.supervisor` in a
session of its own, with the environment as the user had it, and is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import code_snapshot, journal, processes
from jobs.schedulers.base import Job, JobStatus, Limits, Submission, SubmitError, SubmitQuota
from jobs.schedulers.local import fifo_queue


class LocalScheduler:
    """Runs one job at a time, in submission order (see `jobs.schedulers.local.fifo_queue`). Job ids are `host:ticket`."""

    name: str = "local"

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        return [self._submit(each.run, each.number) for each in submissions]

    def _submit(self, run: RunDir, submission: int) -> str:
        ticket = fifo_queue.take(label_of(run, submission))
        job_id = f"{processes.host()}:{ticket}"
        command = [
            "jobs.schedulers.local.supervisor",
            str(run.path.absolute()),
            "--submission",
            str(submission),
        ]
        code = code_snapshot.code_of_run(run, read_json(run.run_json))
        _start(run, submission, ticket, code, [*command, "--ticket", str(ticket), "--job-id", job_id])
        return job_id

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        """In the queue, where its turn comes after all that are before it."""
        ticket = fifo_queue.take(label_of(job.run, job.number))
        own = ["jobs.submission.report_job", str(job.run.path.absolute()), "--submission", str(job.number)]
        code = Path(command[0]).parent
        _start(job.run, job.number, ticket, code, [*own, "--ticket", str(ticket), "--", *command])
        return f"{processes.host()}:{ticket}"

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        tickets = [fifo_queue.find(label_of(each.run, each.number)) for each in submissions]
        return [None if ticket is None else f"{processes.host()}:{ticket}" for ticket in tickets]

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return {job_id: Job(_status(job_id)) for job_id in job_ids}

    def cancel(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            ticket = _ticket(job_id)
            label = fifo_queue.label(ticket) if ticket is not None else None
            if ticket is None or label is None:
                continue
            holder = journal.entry(RunDir(Path(label["run"])), label["submission"]).read("holder")
            if holder is None:
                fifo_queue.discard(ticket)  # it has not shown up, and finds its place gone when it does
            elif processes.is_alive(holder["process"]):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.kill(holder["process"]["pid"], signal.SIGTERM)

    def limits(self) -> Limits:
        return Limits(processors=len(os.sched_getaffinity(0)))

    def room(self, profile: Mapping[str, Any] | None) -> SubmitQuota:
        return SubmitQuota()

    def profile(self, recorded: Mapping[str, Any] | None) -> None:
        return None


def label_of(run: RunDir, submission: int) -> dict[str, Any]:
    run = RunDir(run.path.absolute())
    claim = journal.entry(run, submission).path("claim")
    return {"run": str(run.path), "submission": submission, "settled_by": str(claim)}


def _ticket(job_id: str) -> int | None:
    """The ticket of a job of this host."""
    host, _, ticket = job_id.rpartition(":")
    return int(ticket) if host == processes.host() and ticket.isdigit() else None


def _status(job_id: str) -> JobStatus:
    ticket = _ticket(job_id)
    if ticket is None:
        return "unknown"
    label = fifo_queue.label(ticket)
    if label is None or fifo_queue.place(ticket) == "gone":
        return "ended"
    claimed = journal.entry(RunDir(Path(label["run"])), label["submission"]).path("claim").exists()
    return "running" if claimed else "pending"


def _start(run: RunDir, submission: int, ticket: int, code: Path, module: Sequence[str]) -> None:
    """Start the process that holds a ticket: a module of `code`, with its arguments."""
    import submitit

    executor = submitit.LocalExecutor(folder=run.submissions / "submitit")
    executor.update_parameters(nodes=1, tasks_per_node=1, timeout_min=5)
    log = run.submissions.absolute() / f"{submission:04d}.log"
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    with _detached_from_terminal(), _code_on_path(code):
        try:
            executor.submit(start_detached, list(module), str(log), cuda_devices=devices)
        except OSError as error:
            fifo_queue.discard(ticket)
            raise SubmitError(f"cannot start a process for {run.path}: {error}") from None


def start_detached(module: list[str], log: str, cuda_devices: str | None) -> None:
    """The task that submitit runs: start a module in a session of its own and return."""
    env = dict(os.environ)
    if cuda_devices is None:
        env.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        env["CUDA_VISIBLE_DEVICES"] = cuda_devices
    with open(log, "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", *module],
            env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


@contextlib.contextmanager
def _detached_from_terminal() -> Iterator[None]:
    """Processes started within ignore Ctrl-C and the terminal's end; the supervisor undoes it for its own.

    submitit's helper processes share our foreground process group until the supervisor is up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _code_on_path(code: Path) -> contextlib.AbstractContextManager[None]:
    """Processes started within import this copy of the code, whatever lies in their working directory."""
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    return processes.child_environment({"PYTHONPATH": path, "PYTHONSAFEPATH": "1"})
