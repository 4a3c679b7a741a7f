"""Retry sbatch on transient controller errors without submitting twice."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from jobs.schedulers.base import SubmitError, Unreachable

_TRANSIENT = re.compile(
    r"socket timed out|connection (timed out|refused)|communication connection failure|connect failure"
    r"|unable to contact slurm controller|resource temporarily unavailable|temporarily unable to accept job"
    r"|zero bytes were transmitted or received|in standby mode|try again later",
    re.IGNORECASE,
)


def is_transient(message: str) -> bool:
    """Whether an error message of Slurm is transient."""
    return _TRANSIENT.search(message) is not None


@dataclass(frozen=True)
class Backoff:
    """Pauses between attempts, in seconds: they double from `first_s` to `most_s`, for `within_s` in all."""

    within_s: float = 180.0
    first_s: float = 1.0
    most_s: float = 15.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def pause_s(self, failures: int) -> float:
        """Pause after so many failures. Half is random, so that many submitters do not retry at once."""
        return min(self.most_s, self.first_s * 2.0**failures) * random.uniform(0.5, 1.0)


def submit_with_backoff(
    submit: Callable[[], str], find: Callable[[], str | None], backoff: Backoff | None = None
) -> str:
    """The id of the job that `submit` makes.

    After a transient error `find` looks for the job first, since the controller may have accepted it and
    answered too late. `submit` is called again only if there is none. Raises `SubmitError` when there is no
    job, `Unreachable` when the time was up before that was known.
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
    """The job, or a transient refusal. Raises any other."""
    try:
        return submit()
    except SubmitError as error:
        if is_transient(str(error)):
            return Unreachable(str(error))
        raise
