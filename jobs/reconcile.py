"""From the runs that are wanted and the runs there are to what has to be done, and doing it.

`plan_actions` is pure. `carry_out` journals each step (see `jobs.ledger`), so it may be killed anywhere
and the same command given again. Both belong inside `sweep_lock`, with reading the states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from disttrain import provenance
from disttrain.errors import ConfigError
from disttrain.masking import mask_config
from disttrain.rundir import CorruptFile, RunDir, create_exclusive, read_json, read_json_or_none, write_json
from jobs import ledger
from jobs.cluster import Cluster, SubmitError
from jobs.processes import host
from jobs.state import RunState

if TYPE_CHECKING:
    from sweeps.expand import RunPlan, SweepPlan

Kind = Literal["submit", "retry", "keep", "wait", "stale", "give up"]


@dataclass(frozen=True)
class Action:
    """What is to be done about one wanted run, and why."""

    kind: Kind
    sweep: str
    name: str
    reason: str
    plan: RunPlan | None = None
    """None to start a run again from its own `run.json`."""
    state: RunState | None = None
    job_id: str | None = None
    """The job that was submitted; filled in by `carry_out`."""

    @property
    def submits(self) -> bool:
        return self.kind in ("submit", "retry")


def plan_actions(plan: SweepPlan, states: Sequence[RunState], code_hash: str) -> list[Action]:
    """What to do about each run of `plan`, given the runs there are and the code there is now."""
    by_key = {state.config_key: state for state in states if state.config_key}
    by_name = {state.name: state for state in states}
    actions = []
    for run in plan.runs:
        state = by_key.get(run.config_key) or by_name.get(run.name)
        if state is not None and state.config_key not in (None, run.config_key):
            reason = "a run of that name with another config is there"
            actions.append(Action("give up", plan.name, run.name, reason, run, state))
            continue
        kind, reason = _decide(state, code_hash, run.config.job.max_attempts)
        actions.append(Action(kind, plan.name, state.name if state else run.name, reason, run, state))
    return actions


def resume_actions(
    states: Sequence[RunState], code_hash: str, named: Collection[Path] = frozenset()
) -> list[Action]:
    """What to do to bring these runs to their end, from their own `run.json`.

    Asked for, so neither `job.max_attempts` nor the cause of the last failure stands in the way. A run that
    is merely silent is started again only if its own folder is in `named`: the user then knows that it is
    dead, which nobody else can tell.
    """
    actions = []
    for state in states:
        kind, reason = _decide(state, code_hash, max_attempts=None)
        if not state.journaled and state.state not in ("running", "done", "corrupt"):
            kind, reason = "give up", "not submitted by submit.py: started by hand, or brought from elsewhere"
        elif state.silent and state.run.path in named:
            kind, reason = "retry", f"{state.message}, and taken for dead"
        actions.append(Action(kind, state.sweep, state.name, reason, None, state))
    return actions


def _decide(state: RunState | None, code_hash: str, max_attempts: int | None) -> tuple[Kind, str]:
    """`max_attempts` None: start whatever has failed."""
    if state is None:
        return "submit", "new"
    same_code = state.code_hash == code_hash
    if state.state == "corrupt":
        return "give up", state.message or "a file cannot be read"
    if state.state == "planned":
        return "submit", state.message or "never submitted"
    if state.state == "submitting":
        return "submit", "its submission was interrupted"
    if state.state in ("queued", "running"):
        return "wait", ", ".join(filter(None, [state.state, state.waits_for, state.message]))
    if state.state == "done":
        return ("keep", "done") if same_code else ("stale", f"done with other code ({state.code_hash})")
    why = f"{state.cause}: {state.message}" if state.message else str(state.cause)
    if state.state == "lost" and not state.journaled:
        return "give up", f"{why}; started by hand, so whether it still runs is not known"
    if max_attempts is None:
        return "retry", why
    if not same_code:
        return "retry", f"{why} (with other code)"
    if not state.retryable:
        return "give up", why
    if state.attempts - state.attempts_before_code - state.attempts_in_order >= max_attempts:
        return "give up", f"{why} (job.max_attempts={max_attempts} reached)"
    return "retry", why


def carry_out(actions: Sequence[Action], cluster: Cluster, root: Path) -> list[Action]:
    """Submit what is to be submitted, in order; the actions with their job ids.

    Runs lie in `root/<sweep>/<run>`. A run that turns out to have started after all becomes a `wait`,
    one whose `run.json` cannot be read a `give up`.
    Raises `SubmitError` at the first job the cluster refuses.
    """
    made = provenance.collect() if any(action.submits for action in actions) else {}
    return [_carry_out(action, cluster, Path(root), made) if action.submits else action for action in actions]


def _carry_out(action: Action, cluster: Cluster, root: Path, made: Mapping[str, Any]) -> Action:
    state = action.state
    run = state.run if state else RunDir(root / action.sweep / action.name)
    try:
        record, secrets = _record(action, run, cluster, made)
    except (CorruptFile, OSError, KeyError) as error:
        return dataclasses.replace(action, kind="give up", reason=f"{run.run_json} cannot be used: {error}")
    if state is not None and state.submission is not None:
        # A job that was not found, or one that Slurm requeues yet, starts nothing any more.
        message = "submitted again"
        if not ledger.revoke(run, state.submission, "lost", message, starts=state.starts):
            return dataclasses.replace(action, kind="wait", reason="started in the meantime")
    _write_record(run, record)
    code_hash = made["code"]["hash"]
    attempts = state.attempts if state else 0
    same_code = state is not None and state.code_hash == code_hash
    submission = ledger.write_intent(
        run,
        {
            "cluster": cluster.name,
            "host": host(),
            "config_key": record["config_key"],
            "run_key": record["run_key"],
            "code_hash": code_hash,
            "attempts": attempts,
            "attempts_before_code": state.attempts_before_code if state and same_code else attempts,
        },
    )
    try:
        with _environment(secrets):
            job_id = cluster.submit(run, submission)
    except (SubmitError, ConfigError) as error:
        ledger.revoke(run, submission, "launch_failed", str(error))
        raise
    ledger.write_receipt(run, submission, job_id)
    return dataclasses.replace(action, job_id=job_id)


def _record(
    action: Action, run: RunDir, cluster: Cluster, made: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of `run.json` (`records.RunRecord`), and the secrets left out of it."""
    if action.plan is None:
        record = read_json(run.run_json)
        secrets: dict[str, str] = {}
    else:
        config, secrets = mask_config(action.plan.config.as_dict())
        record = {
            "schema_version": 1,
            "name": run.name,
            "sweep": run.sweep,
            "config_key": action.plan.config_key,
            "repeat": action.plan.repeat,
            "config": config,
            "axes": action.plan.axes,
        }
    record["run_key"] = provenance.run_key(record["config_key"], made["code"]["hash"])
    record["cluster"] = cluster.name
    record["provenance"] = dict(made)
    return record, secrets


def _write_record(run: RunDir, record: Mapping[str, Any]) -> None:
    """Write `run.json`, or leave it if it says this already: it then keeps the provenance of its first plan.

    Where it changes (other code, another cluster, a raised limit), the last attempt keeps the former one.
    """
    former = read_json_or_none(run.run_json)
    if former is not None:
        if _without_provenance(former) == _without_provenance(record):
            return
        attempts = run.attempts()
        if attempts:  # fails where it is there already: then no attempt was made with the former one
            create_exclusive(attempts[-1].path / "run.json", former)
    write_json(run.run_json, record)


def _without_provenance(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "provenance"}


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Jobs submitted within inherit these variables: how secrets travel without being written down."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def cancel(states: Sequence[RunState], cluster: Cluster) -> list[RunState]:
    """End the jobs of these runs, waiting or running; those that had one. Does not wait for their end."""
    hit = [state for state in states if state.active]
    for state in hit:
        if state.state != "running" and state.submission is not None:
            message = "cancelled while it waited to be started again"
            if not state.claimed:
                message = "cancelled before it started"
            ledger.revoke(state.run, state.submission, "cancelled", message, starts=state.starts)
    cluster.cancel([state.job_id for state in hit if state.job_id])
    return hit


@contextlib.contextmanager
def sweep_lock(folder: Path, wait_s: float = 5.0) -> Iterator[None]:
    """Hold a sweep's folder against other submitters; made if missing.

    Raises `ConfigError` when it cannot be written, or when somebody else has it for longer than `wait_s`.
    The kernel drops the lock with its holder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise ConfigError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
    with file:
        deadline = time.monotonic() + wait_s
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                file.seek(0)
                raise ConfigError(
                    f"sweep {folder.name!r} is being submitted by {file.read().strip() or 'another process'}"
                )
            time.sleep(0.05)
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {host()}")
        file.flush()
        yield


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
