"""The one way from wanted runs to jobs: `sweep`, `run`, `resume`, dry runs and `sbatch jobs/train.sbatch`.

    Plan -> preview: what would be done; no lock, no writes
         -> submit: the sweep is locked, states and receipts are read again, runs are submitted

Both call `Plan.decide`, a pure function of the states of the existing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from disttrain.records.run_directory import RunDir
from jobs.core.code_copy import CommandReader
from jobs.core.lock import sweep_lock
from jobs.core.progress import Progress, without_progress
from jobs.schedulers.interface import Batch, Scheduler, SubmitError
from jobs.status.refresh import refresh
from jobs.status.run_folders import annotate
from jobs.status.run_state import RunState, read_runs, read_states
from jobs.submission import report_job
from jobs.submission.before import check_packing, excluded_nodes_warning, warnings_for
from jobs.submission.decide import Action, JobChains, chains_of, plan_actions, resume_actions
from jobs.submission.dependencies import Dependencies, find_dependencies
from jobs.submission.follow_ups import with_done_runs, without_blocked
from jobs.submission.plan import discard_sweep_record, write_sweep_record
from jobs.submission.prepare import PreparedRun, batch_of, prepare, submission_groups
from jobs.submission.submit import carry_out
from sweeps.expand import SweepPlan

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Wanted runs of one sweep: those of an expanded sweep, or recorded ones that go on."""

    root: Path
    sweep: str
    code_hash: str
    expanded: SweepPlan | None = None
    command_hashes: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Hash of the present code of each command of `expanded`."""
    possible: SweepPlan | None = None
    """All runs that may be wanted later, of a sweep to which runs are added as others end."""
    command: Sequence[str] = ()
    """Arguments of `disttrain` with which the report job adds them."""
    report_job: int | None = None
    """Submission of the report job that this process belongs to."""
    recorded: Sequence[RunDir] = ()
    """Runs that start again from their own `run.json`."""
    named: Collection[Path] = ()
    """Folders of recorded runs that the user named one by one."""
    from_scratch: bool = False
    skip_preflight: bool = False
    most_running: int | None = None
    """Largest number of runs of the sweep at the same time."""
    after: Sequence[RunDir] = ()
    """Runs that must be done before these start, some of which this plan may submit."""
    after_any: Sequence[RunDir] = ()
    """Runs that must have ended."""
    tags: Sequence[str] = ()
    note: str | None = None
    annotates_runs: bool = False
    """Whether tags and note are those of the runs, not of the sweep."""

    def states(self, progress: Progress = without_progress) -> list[RunState]:
        """States of the existing runs, from their files."""
        if self.expanded is None:
            return read_states(self.recorded, code_hash=self.code_hash, progress=progress)
        return read_runs(self.root, self.sweep, progress=progress)

    def decide(self, states: Sequence[RunState]) -> list[Action]:
        """The action for each wanted run, and for its follow-up of `job.on_done`."""
        scratch = self.from_scratch
        if self.expanded is None:
            actions = resume_actions(states, self.code_hash, self.named, from_scratch=scratch)
        else:
            wanted = with_done_runs(self.expanded, self.root)
            actions = plan_actions(wanted, states, self.code_hash, self.command_hashes, from_scratch=scratch)
        return without_blocked(actions, self.root)

    def warnings(self, actions: Sequence[Action], scheduler: Scheduler) -> list[str]:
        """One line each, on the runs that start."""
        if self.expanded is None:
            return []
        starting = [action.plan for action in actions if action.submits and action.plan]
        return warnings_for(starting, scheduler, self.expanded.runs, self.root)

    def chains(self, states: Sequence[RunState], scheduler: Scheduler) -> JobChains | None:
        """The chains that new jobs continue; None without a limit, and where jobs run one at a time anyway.

        `states` are those of all runs of the sweep.
        """
        if self.most_running is None or scheduler.one_machine:
            return None
        return chains_of(states, scheduler, self.most_running)

    def dependencies(self, actions: Sequence[Action], scheduler: Scheduler) -> Dependencies:
        """The jobs that these runs wait for. Raises `ConfigError` if the runs would wait for ever, or cannot
        share a node."""
        check_packing(actions, scheduler, self.most_running)
        return find_dependencies(self.after, self.after_any, actions, self.root, scheduler)


@dataclass(frozen=True)
class Outcome:
    """What became of a plan."""

    plan: Plan
    scheduler: Scheduler | None
    """None for completed runs, for which it need not answer."""
    actions: Sequence[Action]
    report: str | SubmitError | None = None
    """Id of the job that writes the report, or why there is none."""

    @property
    def runs(self) -> list[RunDir]:
        return [RunDir(self.plan.root / action.sweep / action.name) for action in self.actions]

    @property
    def submitted(self) -> bool:
        return any(action.job_id for action in self.actions)

    @property
    def refusal(self) -> Exception | None:
        """Why the scheduler took no more runs."""
        return next((action.error for action in self.actions if action.error), None)


def preview(
    plan: Plan,
    scheduler: Scheduler,
    states: Sequence[RunState],
    code: Mapping[str, Any],
    progress: Progress = without_progress,
) -> tuple[list[Action], list[Batch]]:
    """The action for each run, and the batches that `submit` would hand to the scheduler now.

    In place of the id of a job that does not exist yet, a batch has `JOB_OF_<run>`. `code` is the record of
    the code (`records.Code`). Writes nothing.
    """
    actions, chains = plan.decide(states), plan.chains(states, scheduler)
    shown = progress(actions, "preparing runs", len(actions))
    commands, dependencies = CommandReader(plan.root), plan.dependencies(actions, scheduler)
    found = prepare(shown, scheduler, plan.root, {"code": code}, commands, skip_preflight=plan.skip_preflight)
    prepared = [each for each in found if isinstance(each, PreparedRun)]
    batches = []
    most = scheduler.quota().array if prepared else 1
    for group in submission_groups(prepared, scheduler, most, chains, dependencies):
        batches.append(batch_of(group, chains, dependencies))
        job_ids = {each.run: f"JOB_OF_{each.run.name}" for each in group}
        if chains is not None:
            chains.add([*job_ids.values()])
        for run, job_id in job_ids.items():
            dependencies.add(run, job_id)
    return actions, batches


def submit(
    plan: Plan,
    scheduler: Scheduler,
    *,
    current_job: str | None = None,
    report: bool = False,
    lock_s: float = 5.0,
    progress: Progress = without_progress,
    warn: Warn = lambda line: None,
) -> Outcome:
    """Submit the wanted runs that are missing, annotate them, and with `report` submit the report job.

    With `current_job`, the id of the job that this process belongs to, this job becomes the submission.
    Raises `ConfigError` where another process holds the lock for longer than `lock_s` seconds, or where
    `sweep.json` has become that of another base config, or the runs would wait for ever.
    """
    folder = plan.root / plan.sweep
    with sweep_lock(folder, lock_s):
        states = refresh(plan.states(progress), scheduler, receipts=True, warn=warn)
        actions = plan.decide(states)
        dependencies = plan.dependencies(actions, scheduler)
        is_new = plan.expanded is not None and write_sweep_record(plan.root, plan.expanded)
        for line in plan.warnings(actions, scheduler):
            warn(line)
        for line in [] if current_job else excluded_nodes_warning(plan.root, scheduler):
            warn(line)
        if plan.most_running is not None and plan.expanded is None:
            states = refresh(read_runs(plan.root, plan.sweep, progress=progress), scheduler, receipts=True)
        actions = carry_out(
            actions,
            scheduler,
            plan.root,
            current_job=current_job,
            chains=plan.chains(states, scheduler),
            dependencies=dependencies,
            skip_preflight=plan.skip_preflight,
            progress=progress,
        )
        outcome = Outcome(plan, scheduler, actions)
        if outcome.refusal and not outcome.submitted:
            if is_new:
                discard_sweep_record(plan.root, plan.sweep)
            return outcome
        if plan.tags or plan.note is not None:
            for path in [run.path for run in outcome.runs] if plan.annotates_runs else [folder]:
                annotate(path, add=plan.tags, note=plan.note)
        return outcome if not report else with_report(outcome)


def with_report(outcome: Outcome) -> Outcome:
    """The outcome, with a report job that waits for the sweep's active runs.

    The caller holds `sweep_lock`.
    """
    assert outcome.scheduler is not None
    plan = outcome.plan
    try:
        job_id = report_job.ensure(
            plan.root,
            plan.sweep,
            outcome.scheduler,
            anew=outcome.submitted,
            command=plan.command,
            own=plan.report_job,
        )
    except SubmitError as error:
        return replace(outcome, report=error)
    return replace(outcome, report=job_id)
