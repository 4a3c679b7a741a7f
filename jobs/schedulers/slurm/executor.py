"""sbatch: test a batch script, or submit it once by submitit, with retries on transient errors."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError

from disttrain.errors import message_of
from jobs.core.processes import child_environment
from jobs.schedulers.inherited_variables import outside_job
from jobs.schedulers.interface import LimitReached, ScriptCheck, SubmitError, Unreachable
from jobs.schedulers.slurm.commands import TIMEOUT_S

SBATCH_TIMEOUT_S = 60.0
"""Time limit of one sbatch, in seconds: the submitter holds the sweep's lock meanwhile."""
TRANSIENT = re.compile(
    r"socket timed out|connection (timed out|refused)|communication connection failure|connect failure"
    r"|unable to contact slurm controller|resource temporarily unavailable|temporarily unable to accept job"
    r"|zero bytes were transmitted or received|in standby mode|try again later",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\b(?:Assoc|QOS)\w+")
_LIMITS = {
    "invalid job array specification": "the limit of tasks in an array (MaxArraySize)",
    "job submit limit": "the limit of jobs",
}
"""Parts of refusals without the name of a limit. The second is in each one by an association or QOS."""


class TorchrunExecutor(submitit.SlurmExecutor):
    """Places a batch script, which starts torchrun on the nodes of its job, as it stands.

    `submit` of submitit pickles a function, and renames the pickle after sbatch has returned: a submitter
    that is killed in between leaves a job that cannot find its function. Our script names its run, so nothing
    is written after sbatch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder, max_num_timeout=0)

    def place(self, script: Path) -> submitit.Job[Any]:
        """Hand a script to sbatch, once.

        Raises `FailedJobError` with the output of sbatch on stderr, and `subprocess.TimeoutExpired`.
        """
        done = subprocess.run(
            self._make_submission_command(script.absolute()),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise FailedJobError(done.stderr.strip())
        return self.job_class(self.folder, self._get_job_id_from_submission_command(done.stdout))


def sbatch(script: Path, name: str) -> str:
    """Submit a script once; return the id of its job or array.

    Raises `SubmitError`, `LimitReached`, or `Unreachable` if sbatch does not return.
    """
    try:
        with child_environment(dict.fromkeys(os.environ.keys() - outside_job(os.environ).keys())):
            return str(TorchrunExecutor(script.parent).place(script).job_id)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"sbatch did not answer within {error.timeout:g} s") from None
    except (FailedJobError, OSError, RuntimeError) as error:
        message = message_of(error)
        limit = exceeded_limit(message)
        if limit is not None:
            raise LimitReached(limit) from None
        raise SubmitError(f"sbatch refused {name}: {_with_remedy(message)}") from None


def check_script(script: str, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> ScriptCheck:
    """Whether sbatch would accept this script from this environment. Nothing is queued."""
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return ScriptCheck(False, f"sbatch cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ScriptCheck(False, f"sbatch did not answer within {timeout_s:g} s")
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
    message = "; ".join(line.strip() for line in lines if line.strip())
    return ScriptCheck(done.returncode == 0, _with_remedy(message))


def _with_remedy(refusal: str) -> str:
    """A refusal of sbatch, with the next step where the cluster or no node of it has what was requested."""
    if "node configuration is not available" in refusal.lower():
        return f"{refusal}; if several runs share a node, lower resources.runs_per_node"
    if "invalid generic resource" not in refusal.lower():
        return refusal
    return f"{refusal}; if Slurm manages no GPUs of these nodes, give --slurm gpus=none"


def exceeded_limit(message: str) -> str | None:
    """The limit on the number of jobs that caused a refusal of sbatch; None for other refusals."""
    named = _NAMED.search(message)
    if named is not None:
        return f"the limit of jobs ({named[0]})" if "Submit" in named[0] else None
    return next((limit for part, limit in _LIMITS.items() if part in message.lower()), None)


@dataclass(frozen=True)
class Backoff:
    """Pauses between attempts, doubled from `first_s` to `most_s` seconds; `within_s` seconds in all."""

    within_s: float = 180.0
    first_s: float = 1.0
    most_s: float = 15.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def pause_s(self, failures: int) -> float:
        """Pause in seconds after `failures` retries. Half is random, to spread concurrent submitters."""
        return min(self.most_s, self.first_s * 2.0**failures) * random.uniform(0.5, 1.0)


def submit_with_backoff(
    submit: Callable[[], str], find: Callable[[], str | None], backoff: Backoff | None = None
) -> str:
    """Call `submit` until it succeeds; return the job id.

    After a transient error `find` searches for the job, since the controller may have accepted the job and
    answered too late. `submit` is called again only if no job was found. Raises `SubmitError` for a final
    refusal, and `Unreachable` if the errors outlast `backoff`, so that a job may exist.
    """

    def again() -> str:
        return find() or submit()

    backoff = backoff or Backoff()
    deadline = backoff.clock() + backoff.within_s
    failures, attempt = 0, submit
    while True:
        try:
            return attempt()
        except SubmitError as error:
            if not (isinstance(error, Unreachable) or TRANSIENT.search(str(error))):
                raise
            pause_s = backoff.pause_s(failures)
            if backoff.clock() + pause_s > deadline:
                raise Unreachable(str(error)) from None
            print(f"slurm: {error}; trying again in {pause_s:.0f} s", file=sys.stderr)
        backoff.sleep(pause_s)
        failures += 1
        attempt = again
