"""Slurm as a cluster, through submitit: one task per node, each of which becomes `jobs.node.agent`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records.json_files import write_text
from disttrain.records.run_json import read_run_json
from jobs.core import code_snapshot, environment, journal
from jobs.core.processes import child_environment
from jobs.schedulers.base import (
    Job,
    LimitReached,
    Limits,
    Submission,
    SubmitError,
    SubmitQuota,
    Unreachable,
)
from jobs.schedulers.slurm import accounting, commands, job_states, submit_quota
from jobs.schedulers.slurm.batch_script import ArrayTask, Batch, render
from jobs.schedulers.slurm.profile_selection import ProfileSelection
from jobs.schedulers.slurm.report_script import ReportScript
from jobs.schedulers.slurm.report_script import render as follow_up_script
from jobs.schedulers.slurm.sbatch import Backoff, submit_with_backoff
from jobs.submission.submit import batch_name


class SlurmScheduler:
    """Submits a job for each run, those of one batch as an array. Job ids are Slurm's."""

    name: str = "slurm"

    def __init__(
        self, choice: ProfileSelection = ProfileSelection(), patience: Backoff | None = None
    ) -> None:  # noqa: B008 -- it is immutable
        self._choice = choice
        self._patience = patience

    def profile(self, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        return self._choice.resolve(recorded).model_dump(mode="json")

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        first = submissions[0]
        comment = str(_intent(first)["handle"])
        batch = batch_of(submissions, comment, read_run_json(first.run))
        script = render(batch)
        for each in submissions:
            write_text(each.run.script, script)
        job_id = self._sbatch(script, batch.name, comment, batch.logs)
        many = len(submissions) > 1
        return [f"{job_id}_{index}" for index in range(len(submissions))] if many else [job_id]

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        comment = str(_intent(job)["handle"])
        folder = job.run.submissions
        follow_up = ReportScript(
            name=f"report-{job.run.sweep}",
            comment=comment,
            after=job_ids,
            command=command,
            logs=folder.absolute(),
            python=sys.executable,
            profile=ProfileSelection().resolve(profile),
        )
        return self._sbatch(follow_up_script(follow_up), follow_up.name, comment, folder)

    def _sbatch(self, script: str, name: str, comment: str, folder: Path) -> str:
        return submit_with_backoff(
            lambda: sbatch(script, name, folder / "submitit"),
            lambda: _jobs().get(comment),
            self._patience,
        )

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        jobs = _jobs()
        found: list[str | None] = []
        for each in submissions:
            intent = _intent(each)
            index = "" if intent.get("index") is None else f"_{intent['index']}"
            job_id = jobs.get(str(intent.get("handle")))
            found.append(None if job_id is None else job_id + index)
        return found

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """What squeue says; of those that it does not know any more, what sacct says. Without accounting, a
        job that squeue does not know is gone."""
        if not job_ids:
            return {}
        try:
            queue = commands.queue()
        except commands.SlurmCommandError as why:
            return dict.fromkeys(job_ids, Job("unknown", str(why)))
        jobs = {job_id: job_states.from_queue(queue[job_id]) for job_id in job_ids if job_id in queue}
        rest = [job_id for job_id in job_ids if job_id not in jobs]
        try:
            records = accounting.records(rest)
        except commands.SlurmCommandError:
            return jobs | dict.fromkeys(rest, Job("ended"))
        return jobs | {job_id: job_states.from_accounting(records, job_id, queue) for job_id in rest}

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids and not commands.cancel(list(job_ids)) and not commands.answers():
            raise ConfigError("no Slurm controller answers (`scancel`)")

    def limits(self) -> Limits:
        return Limits()

    def room(self, profile: Mapping[str, Any] | None) -> SubmitQuota:
        return submit_quota.room(profile)


def batch_of(submissions: Sequence[Submission], comment: str, record: Mapping[str, Any]) -> Batch:
    """What is submitted for these; `record` is the content of any of their `run.json`."""
    first = submissions[0].run
    folder = first.submissions
    if len(submissions) > 1:  # which outlives each of the runs: a requeued job opens its log again
        folder = first.path.parent / ".arrays"
    return Batch(
        name=batch_name([each.run.name for each in submissions]),
        comment=comment,
        config=record["config"],
        tasks=[ArrayTask(each.run.path.absolute(), each.number) for each in submissions],
        logs=folder.absolute(),
        code=code_snapshot.code_of_run(first, record),
        python=sys.executable,
        profile=ProfileSelection().resolve(record.get("profile")),
    )


def sbatch(script: str, name: str, folder: Path) -> str:
    """Submit a script once; the id of its job or array. What submitit keeps of it goes to `folder`.

    Raises `SubmitError`, or `LimitReached`.
    """
    import submitit

    from jobs.schedulers.slurm import task
    from jobs.schedulers.slurm.submitit_executor import ScriptExecutor

    said = io.StringIO()  # what the exception says too
    try:
        with environment_for_submission(), contextlib.redirect_stderr(said):
            job = ScriptExecutor(folder, script).submit(task.main, [])
    except (submitit.core.utils.FailedJobError, OSError, RuntimeError) as error:
        message = " ".join(str(error).split())
        limit = submit_quota.reached(message)
        if limit is not None:
            raise LimitReached(limit) from None
        raise SubmitError(f"sbatch refused {name}: {message}") from None
    return str(job.job_id)


def environment_for_submission() -> contextlib.AbstractContextManager[None]:
    """Within the block, processes inherit nothing that another job or launcher left in this environment."""
    return child_environment(dict.fromkeys(os.environ.keys() - environment.for_submission(os.environ).keys()))


def _intent(submission: Submission) -> dict[str, Any]:
    return journal.entry(submission.run, submission.number).read("intent") or {}


def _jobs() -> dict[str, str]:
    """The jobs and arrays that Slurm knows of this user's, by their comments."""
    comments = commands.comments()
    if comments is None:
        raise Unreachable("the Slurm controller does not answer")
    return {comment: job_id.partition("_")[0] for job_id, comment in comments}
