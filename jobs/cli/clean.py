"""`clean`: move runs, and code copies that no remaining run refers to, into `RUNS/.trash/<time>/`.

`--restore` moves runs back. `--purge` deletes the trash; without it nothing is deleted.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jobs.cli import options

if TYPE_CHECKING:
    from jobs.status.run_state import RunState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        moved="runs, and the folder that each moved to; `runs` also has the active runs that stayed",
        restored="`--restore`: runs, and the folder that each moved to",
        deleted="`--purge`: folders of the trash, and their runs",
    )
    options.value(parser, "runs_given", "RUN", "runs or whole sweeps, in any state", nargs="*")
    options.flag(parser, "--failed", "select failed, stopped, cancelled, lost and unreadable runs")
    options.flag(parser, "--stale", "select runs done by older code")
    options.tag_filter(parser)
    trash = parser.add_mutually_exclusive_group()
    options.flag(trash, "--restore", "move runs back (without RUN: those of the last clean)")
    options.flag(trash, "--purge", "delete the trash for good")
    options.flag(parser, "--dry-run", "print the moves or deletions, change nothing")


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError
    from jobs.cli import trash
    from jobs.cli.command_output import add_json

    selects = args.failed or args.stale or bool(args.tags)
    if (args.restore or args.purge) and selects:
        flag = "--restore" if args.restore else "--purge"
        raise ConfigError(f"{flag} goes with none of --failed, --stale and --tag")
    if args.purge and args.runs_given:
        raise ConfigError(f"--purge deletes the whole trash: it takes no RUN (given: {args.runs_given[0]!r})")
    if args.restore:
        return _restore(args)
    if not args.purge:
        if not (args.runs_given or selects):
            raise ConfigError("nothing to move is named: give runs or sweeps, --failed, --stale or --tag")
        return _move(args)
    deleted = {
        str(folder): [f"{run.sweep}/{run.name}" for run in trash.runs_in(folder)]
        for folder in trash.folders(args.runs)
    }
    if not args.dry_run:
        trash.purge(args.runs)
    for path, labels in deleted.items():
        verb = "would delete" if args.dry_run else "deleted"
        print(f"{verb}  {path} (runs: {', '.join(labels) or 'none'})")
    if not deleted:
        print("nothing to delete: the trash is empty")
    add_json(deleted=[{"folder": path, "runs": labels} for path, labels in deleted.items()])
    return 0


def _restore(args: argparse.Namespace) -> int:
    from disttrain.records.run_directory import RunDir
    from jobs.cli import trash
    from jobs.cli.command_output import add_json
    from jobs.cli.selection import read_states

    runs = trash.runs_to_restore(args.runs, args.runs_given)
    targets = [RunDir(args.runs / run.sweep / run.name) for run in runs]
    if not args.dry_run:
        trash.restore(runs, args.runs)
    verb = "would restore" if args.dry_run else "restored"
    for run in targets:
        print(f"{verb}  {run.sweep}/{run.name} to {run.path}")
    if not runs:
        print("nothing to restore: the trash is empty")
    rows = [{"sweep": run.sweep, "run": run.name, "to": str(run.path)} for run in targets]
    add_json(read_states(runs if args.dry_run else targets), restored=rows)
    return 0


def _move(args: argparse.Namespace) -> int:
    from jobs.cli import selection, trash
    from jobs.cli.command_output import add_json
    from jobs.core.lock import sweep_lock

    runs = selection.find_runs(args.runs, args.runs_given or selection.sweep_names(args.runs))
    if args.tags:
        runs = [state.run for state in selection.with_tags(selection.read_states(runs), args.tags)]
    named = selection.runs_given_by_name(args.runs, args.runs_given)
    folder = trash.new_folder(args.runs)
    moved: list[RunState] = []
    kept: list[RunState] = []
    for sweep in dict.fromkeys(run.sweep for run in runs):
        with sweep_lock(args.runs / sweep):  # no submission while runs are moved
            present = [run for run in runs if run.sweep == sweep and run.run_json.exists()]
            # Another `clean` may have moved some before the lock. The scheduler is queried, since a cancelled
            # job may end before it records its end.
            states = selection.refresh_or_warn(selection.read_states(present))
            states = [state for state in states if _is_selected(state, args)]
            stay = [
                state for state in states if state.active and not (state.silent and state.run.path in named)
            ]
            kept += stay
            for state in states:
                if state not in stay:
                    moved.append(state)
                    if not args.dry_run:
                        trash.move(state.run.path, folder / state.label)
            if moved and not args.dry_run:
                trash.move_rest(args.runs, sweep, folder)
    if moved and not args.dry_run:
        trash.move_code(args.runs, folder)
    verb = "would move" if args.dry_run else "moved"
    for state in moved:
        print(f"{verb}  {state.label} ({state.displayed_state}) to {folder / state.label}")
    for state in kept:
        hint = "cancel it first" if state.journaled else "started by hand: end it on its host"
        if state.silent:
            hint = f"{state.message}; if its processes are dead, name this run itself"
        print(f"left   {state.label}: it is {state.state}; {hint}")
    if not moved and not kept:
        print("nothing to move")
    rows = [{"sweep": run.sweep, "run": run.name, "to": str(folder / run.label)} for run in moved]
    add_json([*moved, *kept], moved=rows)
    return 0


def _is_selected(state: RunState, args: argparse.Namespace) -> bool:
    """Flags select among the named runs; without a flag all named runs are selected."""
    failed = state.state in ("failed", "lost", "corrupt")
    is_flagged = (args.failed and failed) or (args.stale and state.stale)
    return is_flagged or not (args.failed or args.stale)
