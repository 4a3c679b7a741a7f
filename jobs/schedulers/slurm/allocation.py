"""The Slurm job that this process is part of, for its agent. Standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from jobs.node.allocation import AllocationFacts
from jobs.schedulers.base import uses_gpus
from jobs.schedulers.slurm import commands

_KILL_WAIT_S = 30.0
"""Slurm's default."""
_FINAL = re.compile(r"disabled|not permitted|denied|invalid (user|job)|no such file", re.IGNORECASE)
"""Refusals that waiting does not change; all others may be the controller's absence."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class SlurmAllocation:
    """A `jobs.node.allocation.Allocation`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.job_id = job_id(environ)
        self.restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._nodes = environ.get("SLURM_JOB_NODELIST", "")
        self._end = environ.get("SLURM_JOB_END_TIME", "")
        self._environ = environ

    def facts(self) -> AllocationFacts | None:
        return commands.job(self.job_id)

    def missing_gpus(self, record: Mapping[str, Any]) -> str | None:
        """GPUs: a job that is started again may come without them, and would train on processors."""
        asked, given = _gpus_asked(self._environ, record), _gpus_given(self._environ)
        if asked <= given:
            return None
        return f"Slurm gave this node {given} of the {asked} GPUs that the job asked for"

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


def _gpus_asked(environ: Mapping[str, str], record: Mapping[str, Any]) -> int:
    """For each node. Only one way of asking leaves a variable; the other is known by the site's profile."""
    resources = record["config"]["resources"]
    if not uses_gpus(resources["device"], "slurm", resources["gpus_per_node"]):
        return 0
    if "SLURM_GPUS_PER_NODE" in environ:  # 4, or a100:4, or several types with commas
        return sum(int(count) for count in re.findall(r"(\d+)(?:,|$)", environ["SLURM_GPUS_PER_NODE"]))
    return int(resources["gpus_per_node"]) if (record.get("profile") or {}).get("gpus") == "gres" else 0


def _gpus_given(environ: Mapping[str, str]) -> int:
    told = environ.get("SLURM_GPUS_ON_NODE", "")
    if told.isdigit():
        return int(told)
    visible = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("ROCR_VISIBLE_DEVICES") or ""
    return len([word for word in visible.split(",") if word not in ("", "NoDevFiles")])


def job_id(environ: Mapping[str, str]) -> str:
    """The id by which Slurm's commands mean this job and no other task of its array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]
