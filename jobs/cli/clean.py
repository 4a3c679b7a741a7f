"""`clean`: move runs, and code copies that no remaining run refers to, into `RUNS/.trash/<time>/`.

`--restore` moves runs back. `--purge` deletes the trash; without it nothing is deleted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.cli import polling, run_lookup, submitting, trash
from jobs.cli.command_output import add_json
from jobs.cli.selection import with_tags
from jobs.core import code_snapshot
from jobs.core.sweep_lock import sweep_lock
from jobs.status.run_folders import runs_of
from jobs.status.run_state import RunState


def run(args: argparse.Namespace) -> int:
    if args.restore or args.purge:
        _check_flags(args)
        return _restore(args) if args.restore else _purge(args)
    if not (args.runs_given or args.failed or args.stale or args.tags):
        raise ConfigError("nothing to move is named: give runs or sweeps, --failed, --stale or --tag")
    runs = run_lookup.find_runs(args.runs, args.runs_given or run_lookup.sweep_names(args.runs))
    if args.tags:
        runs = [state.run for state in with_tags(submitting.read_states(runs), args.tags)]
    named = run_lookup.runs_given_by_name(args.runs, args.runs_given)
    folder = trash.new_folder(args.runs)
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
                target = folder / sweep / state.name
                if not args.dry_run:
                    trash.move(state.run.path, target)
                moved.append((state, target))
            if not args.dry_run and moved and not runs_of(args.runs, sweep):
                _move_rest(args.runs / sweep, folder / sweep)
    if moved and not args.dry_run:
        _move_code(args.runs, folder)
    if args.json:
        rows = [{"sweep": state.sweep, "run": state.name, "to": str(target)} for state, target in moved]
        add_json([*(state for state, _ in moved), *kept], moved=rows)
    else:
        _print_moved(moved, kept, args)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    flag = "--restore" if args.restore else "--purge"
    if args.failed or args.stale or args.tags:
        raise ConfigError(f"{flag} goes with none of --failed, --stale and --tag")
    if args.purge and args.runs_given:
        raise ConfigError(f"--purge deletes the whole trash: it takes no RUN (given: {args.runs_given[0]!r})")


def _restore(args: argparse.Namespace) -> int:
    runs = trash.runs_to_restore(args.runs, args.runs_given)
    targets = {run: args.runs / run.sweep / run.name for run in runs}
    if not args.dry_run:
        trash.restore(runs, args.runs)
    if args.json:
        rows = [{"sweep": run.sweep, "run": run.name, "to": str(target)} for run, target in targets.items()]
        add_json(
            submitting.read_states(runs if args.dry_run else [*map(RunDir, targets.values())]), restored=rows
        )
        return 0
    for run, target in targets.items():
        verb = "would restore" if args.dry_run else "restored"
        print(f"{verb}  {run_lookup.run_label(run)} to {target}")
    if not runs:
        print("nothing to restore: the trash is empty")
    return 0


def _purge(args: argparse.Namespace) -> int:
    if args.dry_run:
        deleted = {
            path: [*map(run_lookup.run_label, trash.runs_in(path))] for path in trash.folders(args.runs)
        }
    else:
        deleted = trash.purge(args.runs)
    if args.json:
        add_json(deleted=[{"folder": str(path), "runs": labels} for path, labels in deleted.items()])
        return 0
    for path, labels in deleted.items():
        print(
            f"{'would delete' if args.dry_run else 'deleted'}  {path} (runs: {', '.join(labels) or 'none'})"
        )
    if not deleted:
        print("nothing to delete: the trash is empty")
    return 0


def _print_moved(moved: list[tuple[RunState, Path]], kept: list[RunState], args: argparse.Namespace) -> None:
    for state, target in moved:
        verb = "would move" if args.dry_run else "moved"
        print(f"{verb}  {run_lookup.run_label(state.run)} ({state.displayed_state}) to {target}")
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


def _move_code(root: Path, target: Path) -> None:
    """Move code copies, and plans of sbatch jobs, that no remaining run refers to."""
    from jobs.submission import sbatch_job

    def all_runs() -> list[RunDir]:
        return [run for sweep in run_lookup.sweep_names(root) for run in runs_of(root, sweep)]

    with code_snapshot.unreferenced_snapshots(root, all_runs) as folders:
        for folder in folders:
            trash.move(folder, target / code_snapshot.SNAPSHOTS_FOLDER / folder.name)
    for plan in sbatch_job.plans_without_run(root):
        if plan.exists():  # a concurrent `clean` may have moved it
            trash.move(plan, target / sbatch_job.FOLDER / plan.name)


def _move_rest(folder: Path, target: Path) -> None:
    """Move `sweep.json` and the report after the last run, so that the sweep's name is free."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            trash.move(path, target / path.name)
