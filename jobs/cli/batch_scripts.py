"""The batch scripts of a dry run: exactly what would be submitted, and what Slurm would say to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from jobs.core import environment, journal
from jobs.schedulers.base import Scheduler, Submission
from jobs.schedulers.slurm.batch_script import Batch, render
from jobs.schedulers.slurm.commands import answers
from jobs.schedulers.slurm.scheduler import batch_of
from jobs.schedulers.slurm.test_only import check_script
from jobs.submission import submit
from jobs.submission.actions import Action

DEFAULT_ARRAY = 1001
"""Slurm's own MaxArraySize: what is reckoned with where no controller can be asked."""


def batches(
    actions: Sequence[Action], cluster: Scheduler, root: Path, code: Mapping[str, Any]
) -> list[Batch]:
    """What `submission.carry_out` would submit now, a job or an array each; `code` is what it would note of
    the code."""
    prepared = submit.prepare(actions, cluster, root, {"code": code})
    wanted = [each for each in prepared if isinstance(each, submit.Wanted)]
    if not wanted:
        return []
    most = cluster.room(wanted[0].record.get("profile")).array if answers() else DEFAULT_ARRAY
    found = []
    for batch in submit.batches(wanted, most):
        members = [Submission(each.run, journal.next_submission(each.run)) for each in batch]
        comment = submit.handle(members[0].run, members[0].number)
        found.append(batch_of(members, comment, batch[0].record))
    return found


def described(found: Sequence[Batch], *, trial: bool) -> list[dict[str, Any]]:
    """Each batch as `--json` shows it; with `trial` Slurm is asked about it, too. Raises `ConfigError`."""
    if trial and not answers():
        raise ConfigError("--test-only asks Slurm, and no Slurm controller answers (`scontrol ping`)")
    return [_described(batch, trial) for batch in found]


def _described(batch: Batch, trial: bool) -> dict[str, Any]:
    text = render(batch)
    verdict = check_script(text, environment.for_submission(os.environ)) if trial else None
    return {
        "name": batch.name,
        "runs": [share.run_dir.name for share in batch.tasks],
        "profile": batch.profile.name,
        "script": text,
        "test": None if verdict is None else {"accepted": verdict.accepted, "slurm_says": verdict.said},
    }


def as_text(found: Sequence[dict[str, Any]]) -> str:
    """The scripts for a reader, each as it is, and after it what Slurm says."""
    return "\n".join(_section(batch) for batch in found)


def _section(batch: dict[str, Any]) -> str:
    runs = batch["runs"]
    which = f"array of {', '.join(runs)}" if len(runs) > 1 else runs[0]
    text = f"batch script of {which}, profile {batch['profile']}:\n\n{batch['script']}"
    if batch["test"] is not None:
        word = "takes" if batch["test"]["accepted"] else "refuses"
        text += f"\nSlurm {word} it: {batch['test']['slurm_says']}\n"
    return text
