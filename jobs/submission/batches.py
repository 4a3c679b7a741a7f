"""Prepared runs as batches: the runs of each job or array, and the jobs that it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.core import journal
from jobs.schedulers.base import Batch, Scheduler, Submission, submission_tag
from jobs.submission.job_chains import JobChains
from jobs.submission.prepare import PreparedRun


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
