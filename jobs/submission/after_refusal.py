"""The actions of a submission that the scheduler refused in part, from the journals of the runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.submission.choose_actions import Action


def next_submissions(runs: Sequence[RunDir]) -> list[int]:
    """The number of the next submission of each run, for `actions_after_refusal`."""
    return [journal.next_submission(run) for run in runs]


def actions_after_refusal(
    actions: Sequence[Action], runs: Sequence[RunDir], numbers: Sequence[int], refusal: Exception
) -> list[Action]:
    """The given actions, which `carry_out` ended by `refusal`, each with the job or the reason for none.

    `numbers` are those of `next_submissions` before. The caller holds `sweep_lock` since then.
    """
    return [
        _after_refusal(action, journal.entry(run, number), refusal) if action.submits else action
        for action, run, number in zip(actions, runs, numbers, strict=True)
    ]


def _after_refusal(action: Action, entry: journal.JournalEntry, refusal: Exception) -> Action:
    receipt, claims = entry.read("receipt"), entry.claims()
    if receipt is not None:
        return dataclasses.replace(action, job_id=str(receipt["job_id"]))
    if journal.is_revoked(claims):
        return dataclasses.replace(action, kind="blocked", reason=str(claims[-1]["message"]))
    if entry.read("intent") is not None:
        reason = f"whether it was submitted is not known: {refusal}"
        return dataclasses.replace(action, kind="deferred", reason=reason)
    return dataclasses.replace(action, kind="deferred", reason="not submitted after the refusal of another")
