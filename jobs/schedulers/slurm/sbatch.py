"""Retry sbatch on transient controller errors without submitting twice."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from jobs.schedulers.interface import SubmitError, Unreachable

_TRANSIENT = re.compile(
    r"socket timed out|connection (timed out|refused)|communication connection failure|connect failure"
    r"|unable to contact slurm controller|resource temporarily unavailable|temporarily unable to accept job"
    r"|zero bytes were transmitted or received|in standby mode|try again later",
    re.IGNORECASE,
)


def is_transient(message: str) -> bool:
    """Whether an error message of Slurm reports a transient error."""
    return _TRANSIENT.search(message) is not None


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
    backoff = backoff or Backoff()
    deadline = backoff.clock() + backoff.within_s
    failures = 0
    refusal = _try(submit)
    while isinstance(refusal, SubmitError):
        pause_s = backoff.pause_s(failures)
        if backoff.clock() + pause_s > deadline:
            raise refusal
        print(f"slurm: {refusal}; trying again in {pause_s:.0f} s", file=sys.stderr)
        backoff.sleep(pause_s)
        failures += 1
        try:
            found = find()
        except Unreachable as error:
            refusal = error
            continue
        refusal = found or _try(submit)
    return refusal


def _try(submit: Callable[[], str]) -> str | SubmitError:
    """The job id, or the transient error as `Unreachable`. Raises `SubmitError` for any other error."""
    try:
        return submit()
    except Unreachable as error:
        return error
    except SubmitError as error:
        if is_transient(str(error)):
            return Unreachable(str(error))
        raise
