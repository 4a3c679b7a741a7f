"""`--max-running` and `--serial` of `sweep`, `run` and `resume`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jobs.schedulers.base import Scheduler
from jobs.status.run_state import RunState
from jobs.submission.job_chains import JobChains, chains_of


def limit_given(args: argparse.Namespace) -> int | None:
    """Largest number of runs of a sweep at the same time; None without a limit."""
    limit: int | None = 1 if args.serial else args.max_running
    return limit


def job_chains(
    args: argparse.Namespace, states: Sequence[RunState], scheduler: Scheduler
) -> JobChains | None:
    """The chains that new jobs continue; None without a limit, and where jobs run one at a time anyway.

    `states` are those of all runs of the sweep.
    """
    limit = limit_given(args)
    return None if limit is None or scheduler.one_machine else chains_of(states, scheduler, limit)


def limit_line(args: argparse.Namespace, sweep: str, scheduler: Scheduler) -> list[str]:
    """The line that states the limit and its scope; none without a limit."""
    limit = limit_given(args)
    if limit is None:
        return []
    if scheduler.one_machine:
        return [f"{scheduler.title} runs one of your jobs at a time, over all sweeps"]
    runs = "one run" if limit == 1 else f"{limit} runs"
    return [f"at most {runs} of {sweep} at a time, with those submitted before; other sweeps do not count"]
