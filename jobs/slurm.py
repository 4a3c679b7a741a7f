"""Slurm as a cluster, through submitit: one task per node, each of which becomes `jobs.agent`.

Questions are asked with named fields (`squeue -o`), never by parsing `--json`.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.rundir import RunDir, read_json
from jobs.cluster import ClusterName, JobStatus, Limits, SubmitError, uses_gpus

_TIMEOUT_S = 30
_CODE_ROOT = Path(__file__).resolve().parent.parent
_MINE = ("--user", str(os.getuid()))
"""By number: a user's name in the environment need not be the one that Slurm knows."""
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


def answers(timeout_s: float = 5.0) -> bool:
    """Whether a Slurm controller answers from here."""
    if shutil.which("sbatch") is None:
        return False
    done = _run(["scontrol", "ping"], timeout_s)
    return done is not None and " is UP" in done


class SlurmCluster:
    """Submits one job per run. Job ids are Slurm's."""

    name: ClusterName = "slurm"

    def submit(self, run: RunDir, submission: int) -> str:
        import submitit

        config = read_json(run.run_json)["config"]
        resources = config["resources"]
        ranks = resources["gpus_per_node"]  # of one node
        executor = submitit.SlurmExecutor(folder=run.submissions / "submitit", max_num_timeout=0)
        cpus = ranks * (resources["threads_per_rank"] + config["data"]["workers"])
        parameters = {
            "job_name": run.name,
            "comment": _comment(run, submission),
            "nodes": resources["nodes"],
            "ntasks_per_node": 1,
            "cpus_per_task": cpus,
            "srun_args": [f"--cpus-per-task={cpus}"],  # srun of 22.05 to 23.02 does not take it from sbatch
            "setup": [f"export PYTHONPATH={shlex.quote(str(_CODE_ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
            "time": math.ceil(config["job"]["time_limit_min"]),
            # A requeued job would find its submission claimed; another attempt is another submission.
            "additional_parameters": {"no-requeue": True},
        }
        if uses_gpus(resources["device"], self.name, ranks * resources["nodes"]):
            parameters["gpus_per_node"] = ranks
        executor.update_parameters(**parameters)
        try:
            job = executor.submit(become_agent, str(run.path.absolute()), submission)
        except (submitit.core.utils.FailedJobError, OSError, RuntimeError) as error:
            raise SubmitError(f"sbatch refused {run.path}: {' '.join(str(error).split())}") from None
        return str(job.job_id)

    def find(self, run: RunDir, submission: int) -> str | None:
        wanted = _comment(run, submission)
        listing = _run(["squeue", "--noheader", *_MINE, "-o", "%i|%k"], _TIMEOUT_S)
        for line in (listing or "").splitlines():
            job_id, _, comment = line.strip().partition("|")
            if comment == wanted:
                return job_id
        return None

    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        listing = _run(["squeue", "--noheader", "--states=all", *_MINE, "-o", "%i|%T"], _TIMEOUT_S)
        if listing is None:
            return dict.fromkeys(job_ids, "unknown")
        states = dict(line.strip().split("|", 1) for line in listing.splitlines() if "|" in line)
        return {job_id: _status(states.get(job_id)) for job_id in job_ids}

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            _run(["scancel", *job_ids], _TIMEOUT_S)

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


def _run(command: list[str], timeout_s: float) -> str | None:
    """Standard output of a command, None if it could not be asked."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def become_agent(run_dir: str, submission: int) -> None:
    """The task that submitit runs on each node: replace it by this node's agent.

    As the task itself, not a child of it, the agent gets the signals that Slurm sends.
    """
    hosts = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    command = [sys.executable, "-m", "jobs.agent", run_dir, "--submission", str(submission)]
    command += ["--node-rank", os.environ["SLURM_NODEID"], "--nodes", os.environ["SLURM_JOB_NUM_NODES"]]
    command += ["--job-id", os.environ["SLURM_JOB_ID"], "--hosts", *hosts]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.execv(sys.executable, command)
