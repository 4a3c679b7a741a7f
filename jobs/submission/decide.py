"""Decide what is done with each wanted run, given the states of the existing ones. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from disttrain.errors import ConfigError
from jobs.schedulers.interface import SubmitError
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

    @property
    def submits(self) -> bool:
        return self.kind in ("submit", "retry")


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
    return _from_scratch(actions) if from_scratch else actions


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
            kind, reason = "blocked", "not submitted by submit.py: started by hand, or brought from elsewhere"
        elif state.silent and state.run.path in named:
            kind, reason = "retry", f"{state.message}, and presumed dead"
        actions.append(Action(kind, state.sweep, state.name, reason, None, state))
    return _from_scratch(actions) if from_scratch else actions


def _from_scratch(actions: Sequence[Action]) -> list[Action]:
    return [
        replace(action, from_scratch=True, reason=f"{action.reason}; from scratch")
        if action.submits
        else action
        for action in actions
    ]


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
    if state.attempts_without_progress >= max_attempts:
        return "blocked", f"{why} (job.max_attempts={max_attempts} in a row without a newer checkpoint)"
    return "retry", why
