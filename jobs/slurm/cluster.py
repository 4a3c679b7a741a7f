"""Slurm as a cluster, through submitit: one task per node, each of which becomes `jobs.agent`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from disttrain.rundir import RunDir, read_json
from jobs import snapshot
from jobs.cluster import ClusterName, JobStatus, Limits, SubmitError
from jobs.slurm import commands
from jobs.slurm.script import Batch, Share

_PENDING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
_OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip


class SlurmCluster:
    """Submits one job per run. Job ids are Slurm's."""

    name: ClusterName = "slurm"

    def submit(self, run: RunDir, submission: int) -> str:
        import submitit

        from jobs.slurm import task
        from jobs.slurm.executor import BatchExecutor

        record = read_json(run.run_json)
        batch = Batch(
            name=run.name,
            comment=_comment(run, submission),
            config=record["config"],
            shares=[Share(run.path.absolute(), submission)],
            logs=run.submissions.absolute(),
            code=snapshot.of_run(run, record),
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

    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        states = commands.states()
        if states is None:
            return dict.fromkeys(job_ids, "unknown")
        return {job_id: _status(states.get(job_id)) for job_id in job_ids}

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            commands.cancel(list(job_ids))

    def limits(self) -> Limits:
        return Limits()


def _comment(run: RunDir, submission: int) -> str:
    """The handle by which a job is found again when its receipt was lost."""
    key = read_json(run.run_json)["run_key"]
    return f"disttrain:{run.sweep}/{run.name}:{key}:{submission}"


def _status(state: str | None) -> JobStatus:
    if state is None or state in _OVER:
        return "gone"
    return "pending" if state in _PENDING else "running"
