"""The runs that new runs wait for: `--after` (each must be done) and `--after-any` (each must have ended).

The scheduler keeps the jobs waiting. The intent of a submission names the runs that must be done (`needs`),
and each start looks at them again: a job whose run was stopped has ended well for its scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.core.processes import host
from jobs.schedulers.interface import Scheduler, is_submitted_to
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_states


@dataclass
class Dependencies:
    """Jobs that the runs of one command wait for. Runs of the command may wait for others of it."""

    jobs: dict[RunDir, str] = field(default_factory=dict)
    """Jobs of earlier commands, by their run."""
    done: Collection[RunDir] = ()
    """Runs that must be done. It is enough that the others have ended."""
    first: Collection[RunDir] = ()
    """Runs of this command that its other runs wait for, and that are submitted before them."""
    own: dict[RunDir, str] = field(default_factory=dict)
    """Jobs of those among them that were submitted."""

    def add(self, run: RunDir, job_id: str) -> None:
        """Count a run that this command has submitted."""
        if run in self.first:
            self.own[run] = job_id

    def of(self, run: RunDir) -> tuple[dict[str, str], tuple[str, ...]]:
        """What a run of this command waits for: job ids of runs that must be done, by `sweep/run`, and of
        runs that must have ended."""
        jobs = self.jobs if run in self.first else self.jobs | self.own
        needs = {f"{each.sweep}/{each.name}": job_id for each, job_id in jobs.items() if each in self.done}
        return needs, tuple(job_id for each, job_id in jobs.items() if each not in self.done)


NO_DEPENDENCIES = Dependencies()


def find_dependencies(
    done: Sequence[RunDir], ended: Sequence[RunDir], starting: Collection[RunDir], scheduler: Scheduler
) -> Dependencies:
    """The jobs that the `starting` runs wait for, given the runs that must be done, and those that must have
    ended. Raises `ConfigError` if the runs would wait for ever, or for a job of another scheduler."""
    awaited = list(dict.fromkeys((*done, *ended)))
    first = [run for run in awaited if run in starting]
    if first and len(first) == len(starting):
        message = f"{first[0].name} cannot wait for itself, and no other run starts"
        raise ConfigError(message, at="--after")
    others = [run for run in awaited if run not in first] if starting else []
    states = refresh(read_states(others), scheduler)
    jobs = {each.run: str(each.job_id) for each in states if _is_awaited(each, scheduler, each.run in done)}
    return Dependencies(jobs, done, first)


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
