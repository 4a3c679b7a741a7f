"""`sbatch jobs/train.sbatch`: one run, planned by its own job.

    sbatch --nodes 2 jobs/train.sbatch --config my.yaml [--name SWEEP] [--train.steps 50 ...]

Node 0 does what `submit.py run my.yaml --nodes 2 --set train.steps=50` would, in the folder that sbatch was
called in, and journals its job as the one that was submitted. It then tells the other nodes which run it is:

    runs/.by-hand/<job>-<restart>-<step>.json

From there all go on as any task does, with the copy of the code that node 0 has just made. A job that is
requeued finds its submission by the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.config.parsing import flag_pairs, load
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import read_json, read_json_or_none, write_json
from disttrain.records.masking import mask_config
from disttrain.records.run_directory import RunDir
from jobs.core import code_snapshot, journal
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE, EXIT_LAUNCH_FAILED
from jobs.node.allocation import Allocation
from jobs.node.waiting import JobEnded, poll_until
from jobs.schedulers.base import Submission, SubmitError, SubmitQuota
from jobs.schedulers.slurm import commands
from jobs.schedulers.slurm.allocation import SlurmAllocation, job_id
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh
from jobs.status.run_state import read_runs
from jobs.submission.actions import plan_actions, sweep_lock
from jobs.submission.request import run_plan, sweep_name, write_sweep_record
from jobs.submission.submit import carry_out
from jobs.submission.warnings import cautions
from sweeps.expand import GPUS, NODES, SweepPlan

FOLDER = ".by-hand"
DEFAULT = code_snapshot.CODE_ROOT / "sweeps" / "default.yaml"
_FLAGS = ("--config", "--name")
_TIME_LIMIT = "job.time_limit_min"
_LOCK_S = 60.0
"""How long to wait for whoever submits to the same sweep at this moment."""
_WAIT_S = 180.0
"""How long other nodes wait for node 0."""


@dataclass(frozen=True)
class Job:
    """One start of the Slurm job that this process belongs to."""

    id: str
    restart: int
    step: str
    """A port of its srun: another in the next start, and in another job that gets the same id."""
    node: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Job:
        restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        step = environ.get("SLURM_STEP_LAUNCHER_PORT", "")
        return cls(job_id(environ), restart, step, int(environ["SLURM_NODEID"]))

    def word(self, root: Path) -> Path:
        """Where node 0 says what this start of the job is to do."""
        return root / FOLDER / f"{self.id}-{self.restart}-{self.step}.json"

    def former(self, root: Path) -> dict[str, Any] | None:
        """Which run and submission are this job's, if it has been started before."""
        said = [read_json_or_none(path) or {} for path in (root / FOLDER).glob(f"{self.id}-*.json")]
        earlier = [each for each in said if each.get("restart", self.restart) < self.restart and each["run"]]
        if not earlier:
            return None
        last = max(earlier, key=lambda each: str(each["time"]))
        return {name: last[name] for name in ("run", "submission")}


class ThisJob(SlurmScheduler):
    """Slurm, with the job there is as the one that is submitted."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        return [self._job.id for _ in submissions]

    def room(self, profile: Mapping[str, Any] | None) -> SubmitQuota:
        return SubmitQuota(jobs=1)


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Start the run that the arguments ask for, on one node of its job; returns only if there is none."""
    job, root = Job.of(environ), _folder(environ) / "runs"
    former = job.former(root)
    request, secrets = None, {}
    try:
        request = read_request(argv, environ)
        plan = run_plan(request, read_runs(root, sweep_name(request))).runs[0]
        secrets = mask_config(plan.config.as_dict())[1]
    except ConfigError as error:  # which every node finds, before anything is written
        if former is None:
            if job.node == 0:
                print(f"error: {error}", file=sys.stderr)
            return EXIT_DO_NOT_REQUEUE
        print(f"warning: {error}; job {job.id} goes on as it was planned", file=sys.stderr)
    said = (
        _decide(job, root, former, request) if job.node == 0 else _wait(job, root, SlurmAllocation(environ))
    )
    if said["run"] is None:
        return int(said["exit"])
    return _become_task(RunDir(root / said["run"]), said["submission"], secrets, environ)


def words_without_run(root: Path) -> list[Path]:
    """What was said to jobs about runs that are not there any more."""
    words = {path: read_json_or_none(path) or {} for path in sorted((root / FOLDER).glob("*.json"))}
    # A job plans its run before it says so. So its word is read first, and the run looked for then.
    return [
        path
        for path, said in words.items()
        if said.get("run") and not RunDir(root / said["run"]).run_json.exists()
    ]


def _folder(environ: Mapping[str, str]) -> Path:
    """Where sbatch was called."""
    return Path(environ.get("SLURM_SUBMIT_DIR") or Path.cwd())


def read_request(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The arguments of `submit.py run` that mean the same. Raises `ConfigError`."""
    parser = argparse.ArgumentParser(prog="jobs/train.sbatch", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path, default=DEFAULT)
    parser.add_argument("--name")
    try:
        given, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    flags = flag_pairs(rest, _FLAGS)
    keys = dict(flags)
    folder = _folder(environ)
    file = folder / given.config
    gpus = environ.get("SLURM_GPUS_ON_NODE")
    if gpus == "0" or keys.get("resources.device", _device(file)) == "cpu":
        gpus = None
    given_to_sbatch = (
        (NODES, True, "--nodes"),
        (GPUS, gpus, "--gpus-per-node"),
        (_TIME_LIMIT, True, "--time"),
    )
    for key, allocated, option in given_to_sbatch:
        if allocated and key in keys:
            raise ConfigError(f"{key} is what the job has: sbatch {option} {keys[key]}", at=f"--{key}")
    return argparse.Namespace(
        file=str(file),
        name=given.name,
        runs=folder / "runs",
        nodes=environ["SLURM_JOB_NUM_NODES"],
        gpus_per_node=gpus,
        set=[f"{key}={text}" for key, text in flags],
        start_from=None,
    )


def _device(file: Path) -> Any:
    return load(file).get("resources.device") if file.exists() else None


def _decide(
    job: Job, root: Path, former: dict[str, Any] | None, request: argparse.Namespace | None
) -> dict[str, Any]:
    """What this start of the job is to do, found out by node 0 and told to the others."""
    said: dict[str, Any] = {"run": None, "submission": None, "exit": EXIT_LAUNCH_FAILED}
    try:
        if former is not None:
            print(f"job {job.id} goes on with {former['run']}", flush=True)
            said |= former
        elif request is not None:
            said |= _plan(job, request)
    except (ConfigError, SubmitError) as error:
        print(f"error: {error}", file=sys.stderr)
        said["exit"] = EXIT_DO_NOT_REQUEUE
    finally:
        told = {"job_id": job.id, "restart": job.restart, "time": journal.utc_now(), **said}
        write_json(job.word(root), told)
    return said


def _plan(job: Job, request: argparse.Namespace) -> dict[str, Any]:
    """Plan the run and journal this job as its submission, unless there is nothing to start."""
    root, name, cluster = request.runs, sweep_name(request), ThisJob(job)
    with sweep_lock(root / name, _LOCK_S):
        states = refresh(read_runs(root, name), cluster, receipts=True)
        planned = _limited(run_plan(request, states), commands.time_limit_min(job.id))
        actions = plan_actions(planned, states, code_hash())
        (action,) = actions
        label = f"{name}/{action.name}"
        if action.kind == "in_progress" and action.state and action.state.job_id == job.id:
            return {"run": label, "submission": action.state.submission}
        if action.submits:
            write_sweep_record(root, planned)
            for line in cautions(planned.runs, cluster):
                print(f"warning: {line}", file=sys.stderr)
            (action,) = carry_out(actions, cluster, root, taken="start")
        if action.job_id is not None:
            number = journal.entries(RunDir(root / label))[-1].number
            print(f"{label}: with the code as it is now, edits since sbatch included", flush=True)
            return {"run": label, "submission": number}
    if action.kind in ("up_to_date", "outdated"):
        print(f"{label}: {action.reason}; nothing to do", flush=True)
        return {"exit": 0}
    other = f" (job {action.state.job_id})" if action.kind == "in_progress" and action.state else ""
    print(f"refused: {label}: {action.reason}{other}", file=sys.stderr)
    return {"exit": EXIT_DO_NOT_REQUEUE}


def _limited(plan: SweepPlan, limit_min: int | None) -> SweepPlan:
    """The plan with the time limit that its job has, in place of the config's. None: the config's stays."""
    if limit_min is None:
        return plan
    (run,) = plan.runs
    limited = run.config.job.model_copy(update={"time_limit_min": float(limit_min)})
    config = run.config.model_copy(update={"job": limited})
    return dataclasses.replace(plan, runs=(dataclasses.replace(run, config=config),))


def _wait(job: Job, root: Path, allocation: Allocation) -> dict[str, Any]:
    """What node 0 says."""
    try:
        said = poll_until(lambda: _said(job.word(root)), _WAIT_S, allocation)
    except JobEnded as why:
        print(f"nothing to do: {why}", flush=True)
        return {"run": None, "exit": why.exit_code}
    if said is None:
        print(f"cannot start: node 0 did not say within {_WAIT_S:g} s which run this is", file=sys.stderr)
        return {"run": None, "exit": EXIT_LAUNCH_FAILED}
    return said


def _said(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        return read_json(path)
    return None


def _become_task(run: RunDir, submission: int, secrets: Mapping[str, str], environ: Mapping[str, str]) -> int:
    """Go on as the task of a submitted job: the same process, with the copy of the code."""
    code = code_snapshot.code_of_run(run, read_json(run.run_json))
    paths = os.pathsep.join([str(code), *filter(None, [environ.get("PYTHONPATH")])])
    env = {**environ, **secrets, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    task = [
        sys.executable,
        "-m",
        "jobs.schedulers.slurm.task",
        str(run.path),
        "--submission",
        str(submission),
    ]
    sys.stdout.flush()
    os.execve(sys.executable, task, env)
