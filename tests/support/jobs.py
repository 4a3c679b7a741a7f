"""A sweep of runs that take no time, for tests of everything between `submit.py` and the trainer."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core import run_code
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import (
    Batch,
    Job,
    JobStatus,
    Scheduler,
    SiteProfile,
    Submission,
    SubmitQuota,
)
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from jobs.submission.decide import Action, plan_actions
from jobs.submission.submit import carry_out
from sweeps.expand import RunPlan, SweepPlan

CODE = "c0dec0dec0de"
STANDIN = Path(__file__).with_name("standin.sh")
WITHIN_S = 300.0
"""Timeout of every wait in seconds: long, because other processes may slow the machine down."""
SMALL = """\
model: {kind: mlp}
data: {kind: digits}
train: {steps: 20, local_batch_size: 16, log_every: 5}
telemetry: {warmup_steps: 2, sinks: []}
job: {time_limit_min: 5}
"""


def sweep_plan(
    *names: str, nodes: int = 1, mode: str = "complete", resources: Any = None, **job: Any
) -> SweepPlan:
    """One run for each name, whose launcher does as `mode` says (see `standin.sh`); keys of `job`."""
    runs = []
    for number, name in enumerate(names):
        config = Config.model_validate(
            {
                "train": {"steps": 1, "local_batch_size": 1, "global_batch_size": nodes, "seed": number},
                "resources": {"nodes": nodes, **(resources or {})},
                "job": {"env": {"STANDIN": mode}, **job},
            }
        )
        runs.append(RunPlan(name, config, config_key(config), 0, {}, BatchPlan(1, 1, nodes)))
    return SweepPlan("demo", {}, tuple(runs))


def repeats(count: int, *names: str, nodes: int = 1, mode: str = "complete", **job: Any) -> SweepPlan:
    """So many repeats of each of the runs that `sweep_plan` makes: `a-r0`, `b-r0`, `a-r1`, `b-r1`."""
    plan = sweep_plan(*names, nodes=nodes, mode=mode, **job)
    runs = [
        dataclasses.replace(
            run, name=f"{run.name}-r{number}", repeat=number, config_key=config_key(run.config, number)
        )
        for number in range(count)
        for run in plan.runs
    ]
    return dataclasses.replace(plan, runs=tuple(runs))


def submit(plan: SweepPlan, cluster: Scheduler, root: Path, code: str = CODE) -> list[Action]:
    """Submit an expanded sweep as `submit.py sweep` does."""
    with sweep_lock(root / plan.name):
        states = refresh(read_runs(root, plan.name), cluster, receipts=True)
        actions = carry_out(plan_actions(plan, states, code), cluster, root)
    for action in actions:
        if action.error:
            raise action.error
    return actions


def states(root: Path) -> dict[str, RunState]:
    return {state.name: state for state in read_runs(root)}


def settled(root: Path, within_s: float = WITHIN_S) -> dict[str, RunState]:
    """Wait until no run is active; the states."""
    wait_until(lambda: not any(state.active for state in states(root).values()), within_s)
    return states(root)


def wait_until(happened: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        if happened():
            return
        assert time.monotonic() < deadline, "it did not happen"
        # a look that starts a program leaves the processors to what it waits for
        time.sleep(min(1.0, max(0.02, 2 * (time.monotonic() - began))))


def agent_environment(run: RunDir) -> dict[str, str]:
    """For an agent of this run, with the stand-in as its launcher: it runs the code that was submitted."""
    code = run_code.code_of_run(run, read_json_or_none(run.run_json) or {})
    paths = os.pathsep.join([str(code), str(run_code.CODE_ROOT)])  # tests need not be in the copy
    return {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "DISTTRAIN_LAUNCHER": str(STANDIN)}


def starts(run: RunDir) -> list[tuple[int, int]]:
    """(attempt, node) of each start of the launcher, in order."""
    return [(int(words[0]), int(words[1])) for words in _started(run) if words[0] != "worker"]


def started_pids(run: RunDir) -> list[int]:
    return [int(words[-1]) for words in _started(run)]


def _started(run: RunDir) -> list[list[str]]:
    path = run.path / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def status(job_id: object) -> JobStatus:
    """The status of a job according to Slurm."""
    from jobs.schedulers.slurm.scheduler import SlurmScheduler

    return SlurmScheduler().poll([str(job_id)])[str(job_id)].status


def in_a_fork(act: Callable[[], Any]) -> int:
    """Run `act` in a fork of this process, in its own process group; the pid."""
    pid = os.fork()
    if pid:
        return pid
    _act_and_exit(act)


def _act_and_exit(act: Callable[[], Any]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        act()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(70)


def wait_for(pid: int) -> int:
    """Exit code of a forked copy, -N if signal N ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(function: Callable[..., Any], *, after: bool, call: int = 1) -> Callable[..., Any]:
    """`function`, in whose place this process dies by SIGKILL at that call of it: before it has any effect,
    or after."""
    calls = itertools.count(1)

    def dies(*args: Any, **kwargs: Any) -> Any:
        if next(calls) < call:
            return function(*args, **kwargs)
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return dies


@contextmanager
def ended_afterwards(root: Path, cluster: Scheduler) -> Iterator[None]:
    """Cancel all jobs of the runs when the block ends, also when it fails."""
    from jobs.submission.cancel import cancel_runs

    try:
        yield
    finally:
        cancel_runs(refresh(read_runs(root), cluster), cluster)


class FakeScheduler(Scheduler):
    """Takes jobs and does nothing with them; every job has the state that it is given."""

    name = "local"
    title = "this machine"
    one_machine = True

    def __init__(self, status: JobStatus = "pending", **said: Any) -> None:
        self.job = Job(status, **said)
        self.submitted: list[tuple[str, int]] = []
        self.cancelled: list[str] = []
        self.refused: dict[str, str] = {}
        self.is_cluster: str | None = None
        self.found: str | None = None
        self.followed: list[tuple[str, list[str]]] = []
        self.batches: list[list[str]] = []
        self.has_room = SubmitQuota()

    def unavailable(self) -> str | None:
        return None

    def batch_key(self, run: RunDir, record: Mapping[str, Any], profile: SiteProfile | None) -> str:
        return f"{record['config']['resources']} {profile and profile.name}"

    def submit(self, batch: Batch) -> list[str]:
        for each in batch.submissions:
            self.submitted.append((each.run.name, each.number))
        self.batches.append([each.run.name for each in batch.submissions])
        last = len(self.submitted)
        return [f"elsewhere:{number + 1}" for number in range(last - len(batch.submissions), last)]

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        self.followed.append((job.run.sweep, list(job_ids)))
        return f"later:{len(self.followed)}"

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        return [self.found] * len(submissions)

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return dict.fromkeys(job_ids, self.job)

    def cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        self.cancelled += [job_id for job_id in jobs if job_id not in self.refused]
        return {job_id: self.refused[job_id] for job_id in jobs if job_id in self.refused}

    def batch_log(self, run: RunDir, submission: int, job_id: str) -> Path:
        return run.submissions / f"{job_id}.log"

    def cluster_name(self) -> str | None:
        return self.is_cluster

    def uses_gpus(self, device: str, ranks: int) -> bool:
        return False

    def quota(self) -> SubmitQuota:
        return self.has_room


class FakeSlurm(FakeScheduler):
    name = "slurm"
    title = "Slurm"
    one_machine = False
