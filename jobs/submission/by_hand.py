"""Plan and start the run of a job that was submitted by `sbatch jobs/train.sbatch`.

    sbatch --nodes 2 jobs/train.sbatch --config my.yaml [--name SWEEP] [--train.steps 50 ...]

Node 0 does the work of `disttrain run my.yaml --nodes 2 --set train.steps=50` in the working directory of
sbatch, and journals its own job as the submission. It then writes the run and the submission for the other
nodes:

    runs/.by-hand/<job>-<restart>-<step>.json

Every node continues as the task of a submitted job, with the code copy that node 0 has made. A requeued
job reads its submission from the file of an earlier start.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.config.parsing import check, config_file, flag_pairs, load
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import forbid_world_writes, read_json, read_json_or_none, write_json
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
from jobs.submission.before import check_start_from
from jobs.submission.pipeline import Plan, submit
from jobs.submission.plan import DEFAULT, command_hashes, run_plan, sweep_name
from sweeps.expand import GPUS, NODES, SweepPlan

FOLDER = ".by-hand"
AFTER_FAILURE = "--after-failure"
"""First argument of the step that follows a failure of the agents' step (`jobs.node.ending`)."""
_FLAGS = ("--config", "--name", "--run-name", "--skip-preflight", "--from-scratch")
_LOCK_S = 60.0
"""Seconds to wait for another submitter of the same sweep."""
_WAIT_S = 180.0
"""Seconds that other nodes wait for node 0."""


def plan_file(allocation: CurrentAllocation, root: Path) -> Path:
    """File with run and submission of this start of the job; node 0 writes it, the other nodes read it."""
    start = f"{allocation.job_id}-{allocation.restart}-{allocation.step}"
    return root / FOLDER / f"{start}.json"


def newest_plan(allocation: CurrentAllocation, root: Path, starts: range) -> dict[str, Any] | None:
    """The newest plan with a run, of these starts of the job."""
    files = (root / FOLDER).glob(f"{allocation.job_id}-*.json")
    plans = [plan for path in files if (plan := read_json_or_none(path)) and plan["run"]]
    plans = [plan for plan in plans if plan["restart"] in starts]
    return max(plans, key=lambda plan: str(plan["time"]), default=None)


def plans_without_run(root: Path) -> list[Path]:
    """Plan files of jobs whose runs were moved away.

    A job creates its run before its plan file, so a run is missing only if it was moved away.
    """
    plans = {path: read_json_or_none(path) or {} for path in sorted((root / FOLDER).glob("*.json"))}
    runs = {path: plan["run"] for path, plan in plans.items() if plan.get("run")}
    return [path for path, run in runs.items() if not RunDir(root / run).run_json.exists()]


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Start the run that the arguments describe on one node of its job. Returns only if there is no run."""
    forbid_world_writes()
    allocation = current_allocation(environ)
    root, this = allocation.submit_folder / "runs", allocation.restart
    if list(argv[:1]) == [AFTER_FAILURE]:
        plan = newest_plan(allocation, root, range(this, this + 1))
        return _become_task(allocation, plan or {"run": None, "exit": EXIT_LAUNCH_FAILED}, environ, *argv[:1])
    former = newest_plan(allocation, root, range(this))
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
    if allocation.node_rank > 0:
        return _become_task(allocation, _wait_for_plan(allocation, root), environ)
    plan = {"run": None, "submission": None, "exit": EXIT_LAUNCH_FAILED}
    try:
        if former is not None:
            print(f"job {allocation.job_id} continues {former['run']}", flush=True)
            plan |= {name: former[name] for name in ("run", "submission")}
        elif request is not None:
            plan |= _submit(allocation, request)
    except (ConfigError, SubmitError) as error:
        print(f"error: {error}", file=sys.stderr)
        plan["exit"] = EXIT_DO_NOT_REQUEUE
    finally:
        about = {"job_id": allocation.job_id, "restart": this, "time": journal.utc_now()}
        write_json(plan_file(allocation, root), {**about, **plan})
    return _become_task(allocation, plan, environ)


def read_request(argv: Sequence[str], allocation: CurrentAllocation) -> argparse.Namespace:
    """The equivalent arguments of `disttrain run`. Raises `ConfigError`."""
    parser = argparse.ArgumentParser(prog="train.sbatch", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", dest="file", type=Path, default=DEFAULT)
    parser.add_argument("--name")
    parser.add_argument("--run-name")
    parser.add_argument("--skip-preflight", action="store_true")
    parser.add_argument("--from-scratch", action="store_true")
    try:
        request, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    keys = dict(flags := flag_pairs(rest, _FLAGS))
    file = config_file(allocation.submit_folder / request.file)
    device = keys.get("resources.device", load(file).get("resources.device") if file.exists() else None)
    gpus = None if device == "cpu" or allocation.gpus_on_node == "0" else allocation.gpus_on_node
    set_by_sbatch = {NODES: "--nodes", "job.time_limit_min": "--time"}
    if gpus:
        set_by_sbatch[GPUS] = "--gpus-per-node"
    for key, option in set_by_sbatch.items():
        if key in keys:
            raise ConfigError(f"{key} is set by the job: use sbatch {option} {keys[key]}", at=f"--{key}")
    vars(request).update(
        file=str(file),
        runs=allocation.submit_folder / "runs",
        nodes=str(allocation.nodes),
        gpus_per_node=gpus,
        set=[f"{key}={text}" for key, text in flags],
        start_from=None,
        on_end=None,
        command=(),
    )
    return request


def _submit(allocation: CurrentAllocation, request: argparse.Namespace) -> dict[str, Any]:
    """Plan the run and journal this job as its submission, unless there is nothing to start."""
    root, name = request.runs, sweep_name(request)
    scheduler, job_id = scheduler_named(allocation.scheduler), allocation.job_id
    expanded = _limited(run_plan(request, read_runs(root, name)), allocation.time_limit_min())
    if any(run.config.job.on_done for run in expanded.runs):
        raise ConfigError("a job by hand submits no other run; use disttrain run", at="job.on_done")
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
    label, state = f"{name}/{action.name}", action.state
    if action.kind == "in_progress" and state and state.job_id == job_id:
        return {"run": label, "submission": state.submission}
    if action.job_id is not None:
        for line in [*exclusion_warnings(allocation, root, scheduler), *_warnings(request, expanded)]:
            _warn(line)
        number = journal.entries(RunDir(root / label))[-1].number
        print(f"{label}: runs the present code, including edits made since sbatch", flush=True)
        if request.from_scratch:
            print(f"{label}: {action.reason}", flush=True)
        return {"run": label, "submission": number}
    if action.kind in ("up_to_date", "outdated"):
        print(f"{label}: {action.reason}; nothing to do", flush=True)
        return {"exit": 0}
    other = f" (job {state.job_id})" if action.kind == "in_progress" and state else ""
    print(f"refused: {label}: {action.reason}{other}", file=sys.stderr)
    return {"exit": EXIT_DO_NOT_REQUEUE}


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def exclusion_warnings(allocation: CurrentAllocation, root: Path, scheduler: Scheduler) -> list[str]:
    """Nodes of this job that are on the exclusion list, which a job by hand does not follow."""
    entries = excluded_nodes.among(root, scheduler.cluster_name(), allocation.hosts() or ())
    return [f"{each.problem}; {each.remedy}" for each in check_exclusions(entries)]


def _warnings(request: argparse.Namespace, plan: SweepPlan) -> list[str]:
    """Agents that wait longer than the script, and secrets in its arguments.

    The script is made from the default config, before the config of the run is known.
    """
    lines = []
    config = plan.runs[0].config
    script_s = after_first_end_s(check(load(DEFAULT)).as_dict())
    needed_s = after_first_end_s(config.as_dict())
    if config.resources.nodes > 1 and needed_s > script_s:
        lines.append(
            f"job.rendezvous_timeout_s={config.job.rendezvous_timeout_s:g} needs --wait={needed_s} in a copy "
            f"of train.sbatch, which has --wait={script_s}: after one agent has ended, the others wait "
            f"{script_s} s at most"
        )
    keys = {word.partition("=")[0] for word in request.set}
    lines += [
        f"job.env.{name} is a secret, and the arguments of a job are shown to every user: export {name} "
        "before sbatch, or write it into the config file"
        for name in plan.secrets
        if f"job.env.{name}" in keys
    ]
    return lines


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
    path = plan_file(allocation, root)
    try:
        plan = poll_until(lambda: read_json_or_none(path), _WAIT_S, allocation)
    except JobEnded as why:
        print(f"nothing to do: {why}", flush=True)
        return {"run": None, "exit": why.exit_code}
    if plan is None:
        print(f"cannot start: node 0 wrote no plan within {_WAIT_S:g} s", file=sys.stderr)
    return plan or {"run": None, "exit": EXIT_LAUNCH_FAILED}


def _become_task(
    allocation: CurrentAllocation, plan: Mapping[str, Any], environ: Mapping[str, str], *options: str
) -> int:
    """Replace this process by the task of a submitted job, with the run's code copy (`os.execve`).

    Returns the exit code of a plan without a run.
    """
    if plan["run"] is None:
        return int(plan["exit"])
    run = RunDir(allocation.submit_folder / "runs" / plan["run"])
    code = run_code.code_of_run(run, read_json(run.run_json))
    paths = os.pathsep.join([str(code), *filter(None, [environ.get("PYTHONPATH")])])
    arguments = [str(run.path), "--submission", str(plan["submission"]), *options]
    sys.stdout.flush()
    env = {**environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "jobs.schedulers.task", *arguments], env)
