"""Submit a run for each committed checkpoint of a run: `python -m jobs.submission.checkpoint_runs RUN_DIR`.

Node 0 of a job starts this module with the ranks, and once more with `--once` when they have ended; on this
machine, the supervisor does so at the end of the job. It may be killed at any moment, and two jobs may call
it: the journal of each follow-up has it submitted once.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir, checkpoint_steps
from jobs.core import journal
from jobs.core.attempt import checkpoint_folder
from jobs.core.lock import sweep_lock
from jobs.node.allocation import log_line
from jobs.schedulers.interface import Scheduler, SubmitError
from jobs.schedulers.select import scheduler_named
from jobs.status.refresh import refresh
from jobs.status.run_state import read_runs
from jobs.submission.decide import plan_actions
from jobs.submission.follow_ups import checkpoint_plan
from jobs.submission.submit import carry_out
from sweeps.expand import SweepPlan

_POLL_S = 5.0
_AFTER_REFUSAL_S = 60.0
_LOCK_S = 60.0


def submit_missing(run: RunDir, scheduler: Scheduler) -> None:
    """Submit the follow-ups of checkpoints that have none, unless the user has cancelled the run.

    Raises `SubmitError` if the scheduler takes one of them not now, and `ConfigError`.
    """
    record = read_json(run.run_json)
    config, root = Config.model_validate(record["config"]), run.path.parent.parent
    steps = sorted(checkpoint_steps(checkpoint_folder(run, record["config"])))
    plans = [checkpoint_plan(config, record["config_key"], run, step) for step in steps]
    missing = [plan for plan in plans if not _is_submitted(run, plan.name)]
    if not missing:
        return
    with sweep_lock(run.path.parent, _LOCK_S):
        if journal.entries(run)[-1].read("cancel") is not None:
            return
        names = {plan.name for plan in missing}
        states = [state for state in read_runs(root, run.sweep) if state.name in names]
        wanted = SweepPlan(run.sweep, {}, tuple(missing))
        actions = plan_actions(wanted, refresh(states, scheduler, receipts=True), code_hash="")
        new = [replace(each, profile=record["profile"]) for each in actions if each.kind == "submit"]
        done = carry_out(new, scheduler, root)
    for action in done:
        if action.job_id is None:
            raise SubmitError(f"{action.name}: {action.reason}")
        log_line(f"{action.name}: job {action.job_id}")


def _is_submitted(run: RunDir, name: str) -> bool:
    entries = journal.entries(RunDir(run.path.with_name(name)))
    return any("receipt" in (entry.parts or ()) for entry in entries)


def main(run_dir: str, *once: str) -> int:
    run = RunDir(Path(run_dir))
    scheduler = scheduler_named(read_json(run.run_json)["cluster"])
    while True:
        pause_s = _POLL_S
        try:
            submit_missing(run, scheduler)
        except (ConfigError, OSError, SubmitError) as error:
            log_line(f"job.on_checkpoint: {error}")
            pause_s = _AFTER_REFUSAL_S
        if once:
            return 0
        time.sleep(pause_s)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
