"""The Slurm job that this process is part of, for its agent. Standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from jobs.scheduler import JobFacts
from jobs.slurm import commands

_KILL_WAIT_S = 30.0
"""Slurm's default."""
_FINAL = re.compile(r"disabled|not permitted|denied|invalid (user|job)|no such file", re.IGNORECASE)
"""Refusals that waiting does not change; all others may be the controller's absence."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class SlurmJob:
    """A `jobs.scheduler.Scheduler`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.job_id = job_id(environ)
        self.restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._nodes = environ.get("SLURM_JOB_NODELIST", "")
        self._end = environ.get("SLURM_JOB_END_TIME", "")

    def facts(self) -> JobFacts | None:
        return commands.job(self.job_id)

    def nodes_down(self) -> list[str]:
        return commands.nodes_down(self._nodes) if self._nodes else []

    def end_time(self) -> float | None:
        if self._end.isdigit():
            return float(self._end)
        facts = self.facts()  # before 23.02 it is not in the environment
        return facts.end if facts else None

    def kill_wait_s(self) -> float:
        wait_s = commands.kill_wait_s()
        return _KILL_WAIT_S if wait_s is None else wait_s

    def requeue(self, until: float) -> bool:
        pause_s = _FIRST_PAUSE_S
        while (refusal := commands.requeue(self.job_id)) is not None:
            facts = self.facts()
            if facts is not None and facts.restarts > self.restart:
                return True  # the answer got lost, or Slurm has done it by itself
            last = _FINAL.search(refusal) is not None or time.time() + pause_s > until
            said = "giving up" if last else f"trying again in {pause_s:g} s"
            print(f"scontrol requeue {self.job_id}: {refusal}; {said}", flush=True)
            if last:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True


def job_id(environ: Mapping[str, str]) -> str:
    """The id by which Slurm's commands mean this job and no other task of its array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]
