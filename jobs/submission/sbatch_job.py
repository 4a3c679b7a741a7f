"""Plan and start the run of a job that was submitted by `sbatch jobs/train.sbatch`.

    sbatch --nodes 2 jobs/train.sbatch --config my.yaml [--name SWEEP] [--train.steps 50 ...]

Node 0 does the work of `submit.py run my.yaml --nodes 2 --set train.steps=50` in the working directory of
sbatch, and journals its own job as the submission. It then writes the run and the submission for the other
nodes:

    runs/.by-hand/<job>-<restart>-<step>.json

Every node continues as the task of a submitted job, with the code copy that node 0 has made. A requeued
job reads its submission from the file of an earlier start.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.config.parsing import check, flag_pairs, load
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.file_mode import forbid_world_writes
from disttrain.records.json_files import read_json, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir
from jobs.checks.node_checks import check_exclusions
from jobs.core import excluded_nodes, journal, run_code
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE, EXIT_LAUNCH_FAILED
from jobs.node.allocation import CurrentAllocation, JobEnded, poll_until
from jobs.node.peers import after_first_end_s
from jobs.schedulers.interface import Scheduler, SubmitError
from jobs.schedulers.select import scheduler_named
from jobs.schedulers.task import current_allocation
from jobs.status.run_state import read_runs
from jobs.submission.pipeline import Plan, submit
from jobs.submission.request import DEFAULT, command_hashes, run_plan, sweep_name
from jobs.submission.start_from_check import check_start_from
from sweeps.expand import GPUS, NODES, SweepPlan

FOLDER = ".by-hand"
AFTER_FAILURE = "--after-failure"
"""First argument of the step that follows a failure of the agents' step (`jobs.node.ending`)."""
_FLAGS = ("--config", "--name", "--run-name", "--skip-preflight", "--from-scratch")
_TIME_LIMIT = "job.time_limit_min"
_LOCK_S = 60.0
"""Seconds to wait for another submitter of the same sweep."""
_WAIT_S = 180.0
"""Seconds that other nodes wait for node 0."""


def plan_file(allocation: CurrentAllocation, root: Path) -> Path:
    """File with run and submission of this start of the job; node 0 writes it, the other nodes read it."""
    start = f"{allocation.job_id}-{allocation.restart}-{allocation.step}"
    return root / FOLDER / f"{start}.json"


def former_submission(allocation: CurrentAllocation, root: Path) -> dict[str, Any] | None:
    """Run and submission of this job, if it was started before."""
    plans = [read_json_or_none(path) or {} for path in (root / FOLDER).glob(f"{allocation.job_id}-*.json")]
    restart = allocation.restart
    earlier = [each for each in plans if each.get("restart", restart) < restart and each["run"]]
    if not earlier:
        return None
    last = max(earlier, key=lambda each: str(each["time"]))
    return {name: last[name] for name in ("run", "submission")}


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Start the run that the arguments describe on one node of its job. Returns only if there is no run."""
    forbid_world_writes()
    allocation = current_allocation(environ)
    root = allocation.submit_folder / "runs"
    if list(argv[:1]) == [AFTER_FAILURE]:
        return _after_failure(allocation, root, environ)
    former = former_submission(allocation, root)
    request = None
    try:
        request = read_request(argv, allocation)
        states = read_runs(root, sweep_name(request))
        runs = run_plan(request, states).runs
        check_start_from(runs, {state.config_key for state in states}, root)
    except ConfigError as error:  # every node finds the error before anything is written
        if former is None:
            if allocation.node_rank == 0:
                print(f"error: {error}", file=sys.stderr)
            return EXIT_DO_NOT_REQUEUE
        print(f"warning: {error}; job {allocation.job_id} continues as planned", file=sys.stderr)
    if allocation.node_rank == 0:
        planned = _write_plan(allocation, root, former, request)
    else:
        planned = _wait_for_plan(allocation, root)
    if planned["run"] is None:
        return int(planned["exit"])
    return _become_task(RunDir(root / planned["run"]), planned["submission"], environ)


def _after_failure(allocation: CurrentAllocation, root: Path, environ: Mapping[str, str]) -> int:
    """Continue as the step after a failure. Returns only if this start of the job has planned no run."""
    files = (root / FOLDER).glob(f"{allocation.job_id}-{allocation.restart}-*.json")
    plans = [plan for path in files if (plan := read_json_or_none(path)) and plan["run"]]
    if not plans:
        return EXIT_LAUNCH_FAILED
    plan = max(plans, key=lambda each: str(each["time"]))
    run = RunDir(root / plan["run"])
    return _become_task(run, plan["submission"], environ, AFTER_FAILURE)


def plans_without_run(root: Path) -> list[Path]:
    """Plan files of jobs whose runs were moved away."""
    plans = {path: read_json_or_none(path) or {} for path in sorted((root / FOLDER).glob("*.json"))}
    # A job creates its run before its plan file, so a run is missing only if it was moved away.
    return [
        path
        for path, plan in plans.items()
        if plan.get("run") and not RunDir(root / plan["run"]).run_json.exists()
    ]


def read_request(argv: Sequence[str], allocation: CurrentAllocation) -> argparse.Namespace:
    """The equivalent arguments of `submit.py run`. Raises `ConfigError`."""
    parser = argparse.ArgumentParser(prog="jobs/train.sbatch", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path, default=DEFAULT)
    parser.add_argument("--name")
    parser.add_argument("--run-name")
    parser.add_argument("--skip-preflight", action="store_true")
    parser.add_argument("--from-scratch", action="store_true")
    try:
        given, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    flags = flag_pairs(rest, _FLAGS)
    keys = dict(flags)
    folder = allocation.submit_folder
    file = folder / given.config
    gpus = allocation.gpus_on_node
    if gpus == "0" or keys.get("resources.device", _device(file)) == "cpu":
        gpus = None
    given_to_sbatch = (
        (NODES, True, "--nodes"),
        (GPUS, gpus, "--gpus-per-node"),
        (_TIME_LIMIT, True, "--time"),
    )
    for key, allocated, option in given_to_sbatch:
        if allocated and key in keys:
            raise ConfigError(f"{key} is set by the job: use sbatch {option} {keys[key]}", at=f"--{key}")
    return argparse.Namespace(
        file=str(file),
        name=given.name,
        run_name=given.run_name,
        runs=folder / "runs",
        nodes=str(allocation.nodes),
        gpus_per_node=gpus,
        set=[f"{key}={text}" for key, text in flags],
        start_from=None,
        on_end=None,
        command=(),
        skip_preflight=given.skip_preflight,
        from_scratch=given.from_scratch,
    )


def _device(file: Path) -> Any:
    return load(file).get("resources.device") if file.exists() else None


def _write_plan(
    allocation: CurrentAllocation,
    root: Path,
    former: dict[str, Any] | None,
    request: argparse.Namespace | None,
) -> dict[str, Any]:
    """On node 0, choose run and submission of this start of the job, and write them for the other nodes."""
    planned: dict[str, Any] = {"run": None, "submission": None, "exit": EXIT_LAUNCH_FAILED}
    job_id = allocation.job_id
    try:
        if former is not None:
            print(f"job {job_id} continues {former['run']}", flush=True)
            planned |= former
        elif request is not None:
            planned |= _plan(allocation, request)
    except (ConfigError, SubmitError) as error:
        print(f"error: {error}", file=sys.stderr)
        planned["exit"] = EXIT_DO_NOT_REQUEUE
    finally:
        about = {"job_id": job_id, "restart": allocation.restart, "time": journal.utc_now()}
        write_json(plan_file(allocation, root), {**about, **planned})
    return planned


def _plan(allocation: CurrentAllocation, request: argparse.Namespace) -> dict[str, Any]:
    """Plan the run and journal this job as its submission, unless there is nothing to start."""
    root, name = request.runs, sweep_name(request)
    scheduler, job_id = scheduler_named(allocation.scheduler), allocation.job_id
    expanded = _limited(run_plan(request, read_runs(root, name)), allocation.time_limit_min())
    plan = Plan(
        root,
        name,
        code_hash(),
        expanded,
        command_hashes(expanded, root),
        from_scratch=request.from_scratch,
        skip_preflight=request.skip_preflight,
    )
    outcome = submit(plan, scheduler, current_job=job_id, lock_s=_LOCK_S, warn=_warn)
    (action,) = outcome.actions
    if outcome.refusal is not None:
        raise outcome.refusal
    label = f"{name}/{action.name}"
    if action.kind == "in_progress" and action.state and action.state.job_id == job_id:
        return {"run": label, "submission": action.state.submission}
    if action.job_id is not None:
        for line in [
            *_exclusion_warnings(allocation, root, scheduler),
            *_limit_warning(expanded),
            *_secret_warnings(request, expanded),
        ]:
            _warn(line)
        number = journal.entries(RunDir(root / label))[-1].number
        print(f"{label}: runs the present code, including edits made since sbatch", flush=True)
        if request.from_scratch:
            print(f"{label}: {action.reason}", flush=True)
        return {"run": label, "submission": number}
    if action.kind in ("up_to_date", "outdated"):
        print(f"{label}: {action.reason}; nothing to do", flush=True)
        return {"exit": 0}
    other = f" (job {action.state.job_id})" if action.kind == "in_progress" and action.state else ""
    print(f"refused: {label}: {action.reason}{other}", file=sys.stderr)
    return {"exit": EXIT_DO_NOT_REQUEUE}


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _exclusion_warnings(allocation: CurrentAllocation, root: Path, scheduler: Scheduler) -> list[str]:
    """Nodes of this job that are on the exclusion list, which a job by hand does not follow."""
    if not (root / excluded_nodes.FILE).exists():
        return []
    entries = excluded_nodes.among(root, scheduler.cluster_name(), allocation.hosts() or ())
    return [f"{each.problem}; {each.remedy}" for each in check_exclusions(entries)]


def _limit_warning(plan: SweepPlan) -> list[str]:
    """A warning if the agents need more time after the first end than the script by hand gives them.

    The script is made from the default config, before the config of the run is known.
    """
    (run,) = plan.runs
    given_s = after_first_end_s(check(load(DEFAULT)).as_dict())
    needed_s = after_first_end_s(run.config.as_dict())
    if run.config.resources.nodes == 1 or needed_s <= given_s:
        return []
    timeout_s = run.config.job.rendezvous_timeout_s
    return [
        f"job.rendezvous_timeout_s={timeout_s:g} needs --wait={needed_s} in a copy of jobs/train.sbatch, "
        f"which has --wait={given_s}: after one agent has ended, the others wait {given_s} s at most"
    ]


def _secret_warnings(request: argparse.Namespace, plan: SweepPlan) -> list[str]:
    return [
        f"job.env.{name} is a secret, and the arguments of a job are shown to every user: export {name} "
        "before sbatch, or write it into the config file"
        for name in plan.secrets
        if any(word.startswith(f"job.env.{name}=") for word in request.set)
    ]


def _limited(plan: SweepPlan, limit_min: int | None) -> SweepPlan:
    """The plan with `job.time_limit_min` replaced by the time limit of the job; unchanged for None."""
    if limit_min is None:
        return plan
    (run,) = plan.runs
    limited = run.config.job.model_copy(update={"time_limit_min": float(limit_min)})
    config = run.config.model_copy(update={"job": limited})
    return dataclasses.replace(plan, runs=(dataclasses.replace(run, config=config),))


def _wait_for_plan(allocation: CurrentAllocation, root: Path) -> dict[str, Any]:
    """The plan that node 0 writes; after a time-out or the end of the job, one without a run."""
    try:
        planned = poll_until(lambda: _read_plan(plan_file(allocation, root)), _WAIT_S, allocation)
    except JobEnded as why:
        print(f"nothing to do: {why}", flush=True)
        return {"run": None, "exit": why.exit_code}
    if planned is None:
        print(f"cannot start: node 0 wrote no plan within {_WAIT_S:g} s", file=sys.stderr)
        return {"run": None, "exit": EXIT_LAUNCH_FAILED}
    return planned


def _read_plan(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        return read_json(path)
    return None


def _become_task(
    run: RunDir,
    submission: int,
    environ: Mapping[str, str],
    *options: str,
) -> int:
    """Replace this process by the task of a submitted job, with the run's code copy (`os.execve`)."""
    code = run_code.code_of_run(run, read_json(run.run_json))
    paths = os.pathsep.join([str(code), *filter(None, [environ.get("PYTHONPATH")])])
    env = {**environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    task = ["-m", "jobs.schedulers.task", str(run.path), "--submission", str(submission), *options]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *task], env)
