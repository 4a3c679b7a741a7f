"""Prepared runs as batches: the runs of each job or array, and the jobs that it waits for.

`--max-running N` makes N chains of jobs, in which each job starts after the end of the one before. A sweep
then has at most N running jobs, since each of its active jobs is in one of N chains. Jobs of earlier commands
count, as do jobs that wait for their requeue. The intent of each submission records the jobs that it waits
for (`after`), so that the next command continues the chains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.core import journal
from jobs.schedulers.interface import Batch, Scheduler, Submission, is_submitted_to, submission_tag
from jobs.status.run_state import RunState
from jobs.submission.prepare import PreparedRun


class JobChains:
    """The ends of `limit` chains, which new jobs continue.

    `ends` are ids of active jobs, oldest first, each of which ends a chain. If there are more than `limit`,
    all new jobs also wait for the oldest ones, so that the limit holds once the first new job starts.
    """

    def __init__(self, limit: int, ends: Sequence[str] = ()) -> None:
        self.limit = limit
        above, free = max(0, len(ends) - limit), max(0, limit - len(ends))
        self._ends: deque[tuple[str, ...]] = deque([()] * free)
        self._ends.extend((*ends[:above], end) for end in ends[above:])

    @property
    def empty(self) -> bool:
        """Whether new jobs have no job to wait for."""
        return not any(self._ends)

    def before(self, jobs: int) -> tuple[str, ...]:
        """Ids of the jobs that the next job waits for. An array of several jobs waits for all chains."""
        if jobs == 1:
            return self._ends[0]
        return tuple(dict.fromkeys(job_id for end in self._ends for job_id in end))

    def add(self, job_ids: Sequence[str]) -> None:
        """Count new jobs: one job, which continues a chain, or the tasks of an array limited to `limit`."""
        if len(job_ids) == 1:
            self._ends.popleft()
            self._ends.append(tuple(job_ids))
        else:
            self._ends = deque([tuple(job_ids)] * self.limit)


def chains_of(states: Sequence[RunState], scheduler: Scheduler, limit: int) -> JobChains:
    """The chains of a sweep. `states` are those of all its runs; jobs at other schedulers do not count."""
    active = [
        state
        for state in states
        if state.active and state.job_id and is_submitted_to(scheduler, state.cluster, state.cluster_name)
    ]
    intents = {str(state.job_id): _intent(state) for state in active}
    oldest_first = sorted(intents, key=lambda job_id: str(intents[job_id].get("time", "")))
    return JobChains(limit, ends_of({job_id: intents[job_id].get("after") or [] for job_id in oldest_first}))


def ends_of(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The active jobs that end a chain, given the jobs that each active job waits for, oldest first.

    A job takes the place of the last job in its `after`, and of no other one. So all active jobs are in as
    many chains as there are ends, and no more jobs than that can run at the same time.
    """
    replaced = {job_id for jobs in after.values() for job_id in jobs[-1:]}
    return [job_id for job_id in after if job_id not in replaced]


def _intent(state: RunState) -> dict[str, Any]:
    return {} if state.submission is None else journal.entry(state.run, state.submission).read("intent") or {}


def submission_groups(
    prepared: Sequence[PreparedRun], scheduler: Scheduler, most: int, chains: JobChains | None = None
) -> list[list[PreparedRun]]:
    """The runs of each job, or of each array of at most `most` runs, in the order of submission.

    Runs share an array if their batch scripts differ only in the run. With `chains`, they do so only if there
    is no other job: the limit of an array holds for this array alone.
    """
    if most == 1 or not prepared:
        return [[each] for each in prepared]
    groups: list[list[PreparedRun]] = []
    newest: dict[str, list[PreparedRun]] = {}
    for each in prepared:
        key = scheduler.batch_key(each.run, each.record, each.profile)
        group = newest.get(key)
        if group is None or len(group) == most:
            group = newest[key] = []
            groups.append(group)
        group.append(each)
    if chains is None or (len(groups) == 1 and chains.empty):
        return groups
    return [[each] for each in prepared]


def batch_of(group: Sequence[PreparedRun], chains: JobChains | None = None) -> Batch:
    """The batch of these runs, with their next submission numbers and the jobs that it waits for."""
    first = group[0]
    tag = submission_tag(first.run, journal.next_submission(first.run))
    submissions = [
        Submission(each.run, journal.next_submission(each.run), tag, index if len(group) > 1 else None)
        for index, each in enumerate(group)
    ]
    if chains is None:
        return Batch(submissions, first.record, first.profile)
    return Batch(submissions, first.record, first.profile, chains.before(len(group)), chains.limit)
