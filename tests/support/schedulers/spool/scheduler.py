"""A third scheduler, as somebody would add one: jobs are processes of this machine, listed in a folder.

    $SPOOL/<id>.json     run, submission and tag of a job, or the command of a report job, and its state
    $SPOOL/<id>.requeue  the job asks to start again; .cancelled: it is being ended

`python -m tests.support.schedulers.spool.scheduler ID` is the process of a job. It starts an agent, and
another one after each requeue.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.node.agent import run_agent
from jobs.node.allocation import LOOPBACK, Allocation, AllocationFacts, NodeContext
from jobs.schedulers.interface import Batch, Job, ProfileSelection, Scheduler, Submission
from tests.support.jobs import agent_environment

_THIS = [sys.executable, "-m", "tests.support.schedulers.spool.scheduler"]


def _folder() -> Path:
    return Path(os.environ["SPOOL"])


class SpoolScheduler(Scheduler):
    name = "spool"
    title = "the spool"

    def __init__(self, selection: ProfileSelection | None = None) -> None:
        pass

    def unavailable(self) -> str | None:
        return None if _folder().is_dir() else f"no spool at {_folder()}"

    def submit(self, batch: Batch) -> list[str]:
        return [
            _start({"run": str(each.run.path.absolute()), "number": each.number, "tag": each.tag})
            for each in batch.submissions
        ]

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        return _start({"command": list(command), "after": list(job_ids), "tag": job.tag})

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        known = {read_json(path)["tag"]: path.stem for path in _folder().glob("*.json")}
        return [known.get(each.tag) for each in submissions]

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return {job_id: Job(read_json(_file(job_id))["status"]) for job_id in job_ids}

    def cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        for job_id in jobs:
            job = read_json(_file(job_id))
            if job["status"] != "ended":
                _file(job_id).with_suffix(".cancelled").touch()
                os.killpg(job["pid"], signal.SIGTERM)
        return {}


SCHEDULER = SpoolScheduler


class SpoolAllocation(Allocation):
    """The job of an agent."""

    def __init__(self, job_id: str, restart: int) -> None:
        self.job_id = job_id
        self.restart = restart

    def facts(self) -> AllocationFacts:
        return AllocationFacts(
            not _file(self.job_id).with_suffix(".cancelled").exists(), self.restart, end=None
        )

    def requeue(self, until: float, is_current: Callable[[], bool]) -> bool:
        if is_current():
            _file(self.job_id).with_suffix(".requeue").touch()
        return is_current()


def _file(job_id: str) -> Path:
    return _folder() / f"{job_id}.json"


def _start(job: dict[str, Any]) -> str:
    job_id = f"spool:{len(list(_folder().glob('*.json')))}"
    write_json(_file(job_id), {**job, "status": "pending", "pid": None})
    with open(_file(job_id).with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(
            [*_THIS, job_id], stdout=log, stderr=log, start_new_session=True, cwd=os.environ["CODE"]
        )
    write_json(_file(job_id), {**read_json(_file(job_id)), "pid": process.pid})
    return job_id


def main(job_id: str, restart: str | None = None) -> int:
    """The process of a job; with `restart`, that of its agent."""
    job = read_json(_file(job_id))
    if restart is not None:
        (_folder() / "agent").write_text(str(os.getpid()))
        allocation = SpoolAllocation(job_id, int(restart))
        return run_agent(NodeContext(RunDir(Path(job["run"])), job["number"], 0, [LOOPBACK], allocation))
    signal.signal(signal.SIGTERM, lambda *_: None)  # the agent gets it, too, and ends
    while (job := read_json(_file(job_id)))["pid"] is None:
        time.sleep(0.01)
    while any(read_json(_file(other))["status"] != "ended" for other in job.get("after", ())):
        time.sleep(0.05)
    write_json(_file(job_id), {**job, "status": "running"})
    if "command" in job:
        subprocess.run([sys.executable, *job["command"]], check=False)
    for start in range(9 if "run" in job else 0):
        again = _file(job_id).with_suffix(".requeue")
        again.unlink(missing_ok=True)
        subprocess.run(
            [*_THIS, job_id, str(start)], env=agent_environment(RunDir(Path(job["run"]))), check=False
        )
        if not again.exists():
            break
    write_json(_file(job_id), {**job, "status": "ended"})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
