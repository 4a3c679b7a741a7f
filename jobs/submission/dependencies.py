"""The runs that new runs wait for: `--after` (each must be done) and `--after-any` (each must have ended).

The scheduler keeps the jobs waiting. The intent of a submission names the runs that must be done (`needs`),
and each start looks at them again: a job whose run was stopped has ended well for its scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.core.processes import host
from jobs.schedulers.interface import Scheduler, is_submitted_to
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_states
from jobs.submission.decide import Action


@dataclass
class Dependencies:
    """Jobs that the runs of one command wait for. Runs of the command may wait for others of it."""

    jobs: dict[RunDir, str] = field(default_factory=dict)
    """Jobs of earlier commands, by their run."""
    done: Collection[RunDir] = ()
    """Runs that must be done. It is enough that the others have ended."""
    first: Collection[RunDir] = ()
    """Runs of this command that its other runs wait for, and that are submitted before them."""
    parents: Mapping[RunDir, RunDir] = field(default_factory=dict)
    """The run that must be done before each follow-up of `job.on_done`. It waits for no other one."""
    own: dict[RunDir, str] = field(default_factory=dict)
    """Jobs of this command, and those of parents that an earlier one submitted."""

    def add(self, run: RunDir, job_id: str) -> None:
        """Count a run that this command has submitted."""
        if self is not NO_DEPENDENCIES:
            self.own[run] = job_id

    def rank(self, run: RunDir) -> int:
        """Place of a run in the order of submission: those that others wait for come first."""
        return 0 if run in self.first else 2 if run in self.parents else 1

    def group(self, run: RunDir) -> str:
        """Equal for runs that wait for the same ones."""
        return f" {self.rank(run)} {self.parents.get(run)}"

    def of(self, run: RunDir) -> tuple[dict[str, str], tuple[str, ...]]:
        """What a run of this command waits for: job ids of runs that must be done, by `sweep/run`, and of
        runs that must have ended. The id is empty for a parent without an active job."""
        if (parent := self.parents.get(run)) is not None:
            return {f"{parent.sweep}/{parent.name}": self.own.get(parent, "")}, ()
        jobs = self.jobs
        if run not in self.first:
            jobs = jobs | {each: self.own.get(each, "") for each in self.first}
        needs = {f"{each.sweep}/{each.name}": job_id for each, job_id in jobs.items() if each in self.done}
        return needs, tuple(job_id for each, job_id in jobs.items() if job_id and each not in self.done)


NO_DEPENDENCIES = Dependencies()


def find_dependencies(
    done: Sequence[RunDir],
    ended: Sequence[RunDir],
    actions: Sequence[Action],
    root: Path,
    scheduler: Scheduler,
) -> Dependencies:
    """The jobs that the runs which start wait for, given the runs that must be done, and those that must have
    ended. Raises `ConfigError` if the runs would wait for ever, or for a job of another scheduler."""
    runs = {RunDir(root / each.sweep / each.name): each for each in actions}
    starting = [run for run, action in runs.items() if action.submits]
    parents = {
        run: RunDir(run.path.with_name(parent))
        for run in starting
        if (parent := runs[run].done_before) is not None
    }
    awaited = list(dict.fromkeys((*done, *ended)))
    first = [run for run in awaited if run in starting]
    if first and {*first} >= {*starting} - parents.keys():
        message = f"{first[0].name} cannot wait for itself, and no other run starts"
        raise ConfigError(message, at="--after")
    others = [run for run in awaited if run not in first] if starting else []
    states = refresh(read_states(others), scheduler)
    jobs = {each.run: str(each.job_id) for each in states if _is_awaited(each, scheduler, each.run in done)}
    own = {
        run: str(each.state.job_id) for run, each in runs.items() if each.state and each.kind == "in_progress"
    }
    others = [parent for parent in parents.values() if parent not in runs]
    own |= {each.run: str(each.job_id) for each in read_states(others) if each.active and each.job_id}
    return Dependencies(jobs, done, first, parents, own)


def _is_awaited(state: RunState, scheduler: Scheduler, must_be_done: bool) -> bool:
    """Whether new runs wait for this run. Raises `ConfigError` if they would never start."""
    flag = "--after" if must_be_done else "--after-any"
    if state.state == "planned":
        raise ConfigError(f"{state.label} has no job to wait for: submit it first", at=flag)
    if not state.active:
        if must_be_done and state.state != "done":
            why = f" ({state.cause}: {state.message})" if state.cause else ""
            remedy = "resume it first, or use --after-any"
            raise ConfigError(f"{state.label} is {state.displayed_state}{why}: {remedy}", at=flag)
        return False
    is_here = state.job_id and is_submitted_to(scheduler, state.cluster, state.cluster_name)
    if not is_here or scheduler.host_of(str(state.job_id)) not in (None, host()):
        known = f"{state.job_id or 'unknown'} is not one of {scheduler.title}"
        raise ConfigError(f"{state.label}: its job {known}, where these runs would wait", at=flag)
    return True
