"""Slurm as a cluster, through submitit: one task per node, each of which becomes `jobs.agent`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.rundir import RunDir, read_json
from jobs.cluster import ClusterName, Job, Limits, SubmitError
from jobs.slurm import accounting, commands, endings
from jobs.slurm.script import Batch, Share

_CODE_ROOT = Path(__file__).resolve().parents[2]


class SlurmCluster:
    """Submits one job per run. Job ids are Slurm's."""

    name: ClusterName = "slurm"

    def submit(self, run: RunDir, submission: int) -> str:
        import submitit

        from jobs.slurm import task
        from jobs.slurm.executor import BatchExecutor

        batch = Batch(
            name=run.name,
            comment=_comment(run, submission),
            config=read_json(run.run_json)["config"],
            shares=[Share(run.path.absolute(), submission)],
            logs=run.submissions.absolute(),
            code=_CODE_ROOT,
            python=shlex.quote(sys.executable),
        )
        try:
            executor = BatchExecutor(run.submissions / "submitit", batch)
            job = executor.submit(task.main, [str(run.path.absolute()), "--submission", str(submission)])
        except (submitit.core.utils.FailedJobError, OSError, RuntimeError) as error:
            raise SubmitError(f"sbatch refused {run.path}: {' '.join(str(error).split())}") from None
        return str(job.job_id)

    def find(self, run: RunDir, submission: int) -> str | None:
        wanted = _comment(run, submission)
        return next((job_id for job_id, comment in commands.comments() or [] if comment == wanted), None)

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """What squeue says; of those that it does not know any more, what sacct says. Without accounting, a
        job that squeue does not know is gone."""
        try:
            queue = commands.queue()
        except commands.NoAnswer as why:
            return dict.fromkeys(job_ids, Job("unknown", str(why)))
        jobs = {job_id: endings.from_queue(queue[job_id]) for job_id in job_ids if job_id in queue}
        rest = [job_id for job_id in job_ids if job_id not in jobs]
        try:
            records = accounting.records(rest)
        except commands.NoAnswer:
            return jobs | dict.fromkeys(rest, Job("gone"))
        return jobs | {job_id: endings.from_accounting(records, job_id) for job_id in rest}

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            commands.cancel(list(job_ids))

    def limits(self) -> Limits:
        return Limits()


def _comment(run: RunDir, submission: int) -> str:
    """The handle by which a job is found again when its receipt was lost."""
    key = read_json(run.run_json)["run_key"]
    return f"disttrain:{run.sweep}/{run.name}:{key}:{submission}"
