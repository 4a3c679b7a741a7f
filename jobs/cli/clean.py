"""`clean`: move runs, and code copies that no remaining run refers to, into `RUNS/.trash/<time>/`.

Nothing is deleted.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.cli import polling, run_lookup, submitting
from jobs.cli.json_output import print_json
from jobs.cli.status_table import displayed_state
from jobs.core import code_snapshot
from jobs.core.sweep_lock import sweep_lock
from jobs.status.run_state import RunState, runs_of

TRASH = ".trash"


def run(args: argparse.Namespace) -> int:
    if not (args.runs_given or args.failed or args.stale):
        raise ConfigError("nothing to move is named: give names of runs or sweeps, --failed or --stale")
    runs = run_lookup.find_runs(args.runs, args.runs_given or run_lookup.sweep_names(args.runs))
    named = run_lookup.runs_given_by_name(args.runs, args.runs_given)
    trash = _new_trash(args.runs)
    moved: list[tuple[RunState, Path]] = []
    kept: list[RunState] = []
    for sweep in dict.fromkeys(run.sweep for run in runs):
        with sweep_lock(args.runs / sweep):  # no submission while runs are moved
            present = [run for run in runs if run.sweep == sweep and run.run_json.exists()]
            # Another `clean` may have moved some before the lock. The scheduler is queried, since a cancelled
            # job may end before it records its end.
            for state in polling.refresh_or_warn(submitting.read_states(present)):
                if not _is_selected(state, args):
                    continue
                if state.active and not (state.silent and state.run.path in named):
                    kept.append(state)
                    continue
                target = trash / sweep / state.name
                if not args.dry_run:
                    _move(state.run.path, target)
                moved.append((state, target))
            if not args.dry_run and moved and not runs_of(args.runs, sweep):
                _move_rest(args.runs / sweep, trash / sweep)
    if moved and not args.dry_run:
        _move_code(args.runs, trash)
    if args.json:
        print_json([{"run": run_lookup.run_label(state.run), "to": str(target)} for state, target in moved])
    else:
        _print_moved(moved, kept, args)
    return 0


def _print_moved(moved: list[tuple[RunState, Path]], kept: list[RunState], args: argparse.Namespace) -> None:
    for state, target in moved:
        verb = "would move" if args.dry_run else "moved"
        print(f"{verb}  {run_lookup.run_label(state.run)} ({displayed_state(state)}) to {target}")
    for state in kept:
        print(f"left   {run_lookup.run_label(state.run)}: it is {state.state}; {_kept_hint(state)}")
    if not moved and not kept:
        print("nothing to move")


def _is_selected(state: RunState, args: argparse.Namespace) -> bool:
    """Flags select among the named runs; without a flag all named runs are selected."""
    if not (args.failed or args.stale):
        return True
    failed = state.state in ("failed", "lost", "corrupt")
    return bool((args.failed and failed) or (args.stale and state.stale))


def _kept_hint(state: RunState) -> str:
    if state.silent:
        return f"{state.message}; if its processes are dead, name this run itself"
    return "cancel it first" if state.journaled else "started by hand: end it on its host"


def _new_trash(root: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = root / TRASH / f"{stamp}{suffix}"
        if not path.exists():
            return path
    raise ConfigError(f"cannot find a free name in {root / TRASH}")


def _move(path: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    except OSError as error:
        raise ConfigError(f"cannot move {path} to {target}: {error.strerror}") from None


def _move_code(root: Path, trash: Path) -> None:
    """Move code copies, and plans of sbatch jobs, that no remaining run refers to."""
    from jobs.submission import sbatch_job

    def all_runs() -> list[RunDir]:
        return [run for sweep in run_lookup.sweep_names(root) for run in runs_of(root, sweep)]

    with code_snapshot.unreferenced_snapshots(root, all_runs) as folders:
        for folder in folders:
            _move(folder, trash / code_snapshot.SNAPSHOTS_FOLDER / folder.name)
    for plan in sbatch_job.plans_without_run(root):
        if plan.exists():  # a concurrent `clean` may have moved it
            _move(plan, trash / sbatch_job.FOLDER / plan.name)


def _move_rest(folder: Path, target: Path) -> None:
    """Move `sweep.json` and the report after the last run, so that the sweep's name is free."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            _move(path, target / path.name)
