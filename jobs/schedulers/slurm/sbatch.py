"""Trouble that passes by itself: which refusals that is, and trying again without making a second job."""

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
    """Whether a message of Slurm's means that the same may work in a moment."""
    return _TRANSIENT.search(message) is not None


@dataclass(frozen=True)
class Backoff:
    """How long to try, and how often: pauses double from `first_s` to `most_s`."""

    within_s: float = 180.0
    first_s: float = 1.0
    most_s: float = 15.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def pause_s(self, failures: int) -> float:
        """Half of it is left to chance, so that many submitters do not come back at once."""
        return min(self.most_s, self.first_s * 2.0**failures) * random.uniform(0.5, 1.0)


def submit_with_backoff(
    submit: Callable[[], str], find: Callable[[], str | None], patience: Backoff | None = None
) -> str:
    """The id of the job that `submit` makes. Where it fails with what passes, it is called again once `find`
    has said that there is no job after all: the controller may have taken it and been too slow to say so.

    Raises `SubmitError` when there is no job, `Unreachable` when the time was up before that was known.
    """
    patience = patience or Backoff()
    deadline = patience.clock() + patience.within_s
    failures = 0
    refusal = _try(submit)
    while isinstance(refusal, SubmitError):
        pause_s = patience.pause_s(failures)
        if patience.clock() + pause_s > deadline:
            raise refusal
        print(f"slurm: {refusal}; trying again in {pause_s:.0f} s", file=sys.stderr)
        patience.sleep(pause_s)
        failures += 1
        try:
            found = find()
        except Unreachable as error:
            refusal = error
            continue
        refusal = found or _try(submit)
    return refusal


def _try(submit: Callable[[], str]) -> str | SubmitError:
    """The job, or the refusal if it may pass. Any other is raised."""
    try:
        return submit()
    except SubmitError as error:
        if is_transient(str(error)):
            return Unreachable(str(error))
        raise
