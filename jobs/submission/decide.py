"""Decide what is done with each wanted run, given the states of the existing ones, and the jobs it waits for.

`--max-running N` makes N chains of jobs, in which each job starts after the end of the one before. A sweep
then has at most N running jobs, since each of its active jobs is in one of N chains. Jobs of earlier commands
count, as do jobs that wait for their requeue. The intent of each submission records the jobs that it waits
for (`after`), so that the next command continues the chains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from disttrain.errors import ConfigError
from jobs.core import journal
from jobs.core.attempt import job_start
from jobs.core.follow_ups import DONE, parent
from jobs.core.requeue_policy import starts_without_progress
from jobs.schedulers.interface import Scheduler, SubmitError, is_submitted_to
from jobs.status.run_state import RunState

if TYPE_CHECKING:
    from sweeps.expand import RunPlan, SweepPlan

Kind = Literal["submit", "retry", "up_to_date", "in_progress", "outdated", "blocked", "deferred"]


@dataclass(frozen=True)
class Action:
    """The action for one planned run, and its reason."""

    kind: Kind
    sweep: str
    name: str
    reason: str
    plan: RunPlan | None = None
    """None for a run that starts again from its own `run.json`."""
    state: RunState | None = None
    job_id: str | None = None
    """The submitted job; set by `submit.carry_out`."""
    error: SubmitError | ConfigError | None = None
    """The refusal of its submission; set by `submit.carry_out`."""
    from_scratch: bool = False
    """Whether `submit.carry_out` sets the run's checkpoints aside, so that it trains from step 1."""
    profile: Mapping[str, Any] | None = None
    """Recorded site profile of the run that this one follows; None: the chosen one."""

    @property
    def submits(self) -> bool:
        return self.kind in ("submit", "retry")

    @property
    def done_before(self) -> str | None:
        """The run that must be done before this one, a follow-up of `job.on_done`."""
        if self.plan is not None:
            followed = self.plan.follows
        else:
            followed = parent(self.state.run) if self.state else None
        return followed if self.name.endswith(DONE) else None


def plan_actions(
    plan: SweepPlan,
    states: Sequence[RunState],
    code_hash: str,
    command_hashes: Mapping[tuple[str, ...], str] = MappingProxyType({}),
    *,
    from_scratch: bool = False,
) -> list[Action]:
    """The action for each run of `plan`, given the existing runs and the hash of the present code.

    `command_hashes`: hash of the present code of each command. `from_scratch` is an explicit request, as
    `resume` is.
    """
    by_key = {state.config_key: state for state in states if state.config_key}
    by_name = {state.name: state for state in states}
    actions = []
    for run in plan.runs:
        state = by_key.get(run.config_key) or by_name.get(run.name)
        if state is not None and state.config_key not in (None, run.config_key):
            reason = "a run of that name with another config is there"
            actions.append(Action("blocked", plan.name, run.name, reason, run, state))
            continue
        code = command_hashes.get(run.config.command, code_hash)
        kind, reason = _decide(state, code, None if from_scratch else run.config.job.max_attempts)
        actions.append(Action(kind, plan.name, state.name if state else run.name, reason, run, state))
    return list(map(_from_scratch, actions)) if from_scratch else actions


def resume_actions(
    states: Sequence[RunState],
    code_hash: str,
    named: Collection[Path] = frozenset(),
    *,
    from_scratch: bool = False,
) -> list[Action]:
    """The action that continues each of these runs from its own `run.json`.

    `resume` is an explicit request, so neither `job.max_attempts` nor the cause of the last failure counts. A
    silent run on another host is started again only if its folder is in `named`: this host cannot check
    whether its processes have ended.
    """
    actions = []
    for state in states:
        code = code_hash
        if state.source is not None and not state.stale:
            code = state.code_hash or ""
        kind, reason = _decide(state, code, max_attempts=None)
        if not state.journaled and state.state not in ("running", "done", "corrupt"):
            kind, reason = "blocked", "not submitted by disttrain: started by hand, or brought from elsewhere"
        elif state.silent and state.run.path in named:
            kind, reason = "retry", f"{state.message}, and presumed dead"
        actions.append(Action(kind, state.sweep, state.name, reason, None, state))
    return list(map(_from_scratch, actions)) if from_scratch else actions


def _from_scratch(action: Action) -> Action:
    reason = f"{action.reason}; from scratch"
    return replace(action, from_scratch=True, reason=reason) if action.submits else action


def _decide(state: RunState | None, code_hash: str, max_attempts: int | None) -> tuple[Kind, str]:
    """Kind and reason of a run's action. With `max_attempts` None, every failed run starts again."""
    if state is None:
        return "submit", "new"
    same_code = state.code_hash == code_hash
    if state.state == "corrupt":
        return "blocked", state.message or "a file cannot be read"
    if state.state == "planned":
        return "submit", state.message or "never submitted"
    if state.state == "submitting":
        return (
            ("in_progress", state.message) if state.message else ("submit", "its submission was interrupted")
        )
    if state.state in ("queued", "starting", "running"):
        return "in_progress", ", ".join(filter(None, [state.state, state.waits_for, state.message]))
    if state.state == "done":
        other = f"done with other code ({state.code_hash})"
        return ("up_to_date", "done") if same_code else ("outdated", other)
    why = f"{state.cause}: {state.message}" if state.message else str(state.cause)
    if state.state == "lost" and not state.journaled:
        return "blocked", f"{why}; started by hand, so whether it still runs is unknown"
    if max_attempts is None:
        return "retry", why
    if not same_code:
        return "retry", f"{why} (with other code)"
    if not state.retryable:
        return "blocked", why
    if _attempts_without_progress(state) >= max_attempts:
        return "blocked", f"{why} (job.max_attempts={max_attempts} in a row without a newer checkpoint)"
    return "retry", why


def _attempts_without_progress(state: RunState) -> int:
    """Failed attempts with the current code since the newest checkpoint; 0 for a job that never started."""
    numbers = range(state.attempts_before_code, state.attempts if state.claimed else 0)
    return starts_without_progress([job_start(state.run, state.run.attempt(number)) for number in numbers])


class JobChains:
    """The ends of `limit` chains, which new jobs continue.

    `ends` are ids of active jobs, oldest first, each of which ends a chain. If there are more than `limit`,
    all new jobs also wait for the oldest ones, so that the limit holds once the first new job starts.
    """

    def __init__(self, limit: int, ends: Sequence[str] = ()) -> None:
        self.limit = limit
        above, free = max(0, len(ends) - limit), max(0, limit - len(ends))
        self._ends: deque[tuple[str, ...]] = deque([()] * free)
        self._ends.extend((*ends[:above], end) for end in ends[above:])

    @property
    def empty(self) -> bool:
        """Whether new jobs have no job to wait for."""
        return not any(self._ends)

    def before(self, jobs: int) -> tuple[str, ...]:
        """Ids of the jobs that the next job waits for. An array of several jobs waits for all chains."""
        if jobs == 1:
            return self._ends[0]
        return tuple(dict.fromkeys(job_id for end in self._ends for job_id in end))

    def add(self, job_ids: Sequence[str]) -> None:
        """Count new jobs: one job, which continues a chain, or the tasks of an array limited to `limit`."""
        if len(job_ids) == 1:
            self._ends.popleft()
            self._ends.append(tuple(job_ids))
        else:
            self._ends = deque([tuple(job_ids)] * self.limit)


def active_jobs(states: Sequence[RunState], scheduler: Scheduler) -> list[RunState]:
    """The runs with an active job at this scheduler."""
    return [
        state
        for state in states
        if state.active and state.job_id and is_submitted_to(scheduler, state.cluster, state.cluster_name)
    ]


def intent_of(state: RunState) -> dict[str, Any]:
    """The intent of the newest submission of a run; empty without one."""
    return {} if state.submission is None else journal.entry(state.run, state.submission).read("intent") or {}


def submission_time(state: RunState) -> str:
    """Time of the newest submission of a run: UTC, ISO 8601."""
    return str(intent_of(state).get("time", ""))


def chains_of(states: Sequence[RunState], scheduler: Scheduler, limit: int) -> JobChains:
    """The chains of a sweep. `states` are those of all its runs; jobs at other schedulers do not count."""
    oldest_first = sorted(active_jobs(states, scheduler), key=submission_time)
    return JobChains(
        limit, ends_of({str(state.job_id): intent_of(state).get("after") or [] for state in oldest_first})
    )


def ends_of(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The active jobs that end a chain, given the jobs that each active job waits for, oldest first.

    A job takes the place of the last job in its `after`, and of no other one. So all active jobs are in as
    many chains as there are ends, and no more jobs than that can run at the same time.
    """
    replaced = {job_id for jobs in after.values() for job_id in jobs[-1:]}
    return [job_id for job_id in after if job_id not in replaced]
