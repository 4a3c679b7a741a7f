"""The end of a sweep: call its hook, `job.on_end`, with the number of runs in each state.

The report job calls the hook after it has written the report. A command with `--wait` submits no report job,
and calls the hook itself.
"""

from __future__ import annotations

import argparse
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from disttrain.errors import ConfigError
from jobs.cli.command_output import print_error, print_warning
from jobs.cli.formatting import count
from jobs.cli.selection import refresh_or_warn
from jobs.core import hook
from jobs.status.run_state import RunState, read_runs
from jobs.submission import report_job


def run_report_job(args: argparse.Namespace, write_report: Callable[[], Path]) -> int:
    """Write the report and call the hook; 1 if a run has failed or the report was not written.

    The scheduler's mail about the job therefore distinguishes a sweep with failed runs.
    """
    folder, page = args.runs / args.sweeps[0], None
    try:
        page = write_report()
    except ConfigError as error:
        print_error(f"error: {error}")
    except Exception:  # the hook is called all the same
        traceback.print_exc()
    states = refresh_or_warn(read_runs(args.runs, folder.name))
    _call_hook(folder, states, page, hook.records_of(folder) / f"sweep_end-job-{args.sweep_end:04d}.json")
    failed = _failed_runs(states)
    if failed:
        print(f"{count(len(failed), 'run')} failed: {', '.join(state.name for state in failed)}")
    return 1 if failed or page is None else 0


def call_after_wait(root: Path, sweep: str) -> None:
    """Call the hook of a sweep whose runs were watched to their end.

    Nothing is done while other runs of the sweep are active, or if a report job waits for one of the runs.
    """
    states, records = refresh_or_warn(read_runs(root, sweep)), hook.records_of(root / sweep)
    if not any(state.active for state in states) and not report_job.waits_for(root, sweep, states):
        _call_hook(root / sweep, states, None, hook.free_record(records, "sweep_end-wait"))


def _call_hook(folder: Path, states: Sequence[RunState], page: Path | None, record: Path) -> None:
    """Call the hook of the newest submission, if it has one."""
    newest = max(states, key=report_job.submission_time, default=None)
    command = hook.command_of(newest.run) if newest is not None else None
    if command is None:
        return
    counts = Counter(state.displayed_state for state in states)
    failed = [
        {"run": state.name, "cause": state.cause, "message": state.message} for state in _failed_runs(states)
    ]
    try:
        problem = hook.call(command, hook.Event("sweep_end", folder, counts, failed, page), record)
    except OSError as error:
        problem = f"job.on_end was not called: {error}"
    if problem is not None:
        print_warning(problem)


def _failed_runs(states: Sequence[RunState]) -> list[RunState]:
    """The runs that have failed. A run that the user cancelled or stopped has not."""
    return [state for state in states if state.displayed_state in ("failed", "lost", "corrupt")]
