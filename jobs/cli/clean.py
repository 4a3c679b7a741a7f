"""`clean`: move runs, and copies of the code that no other run needs, into `RUNS/.trash/<time>/`.

Nothing is deleted.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from jobs.cli import run_lookup, submitting
from jobs.cli.status_table import print_json, word_of
from jobs.core import code_snapshot
from jobs.status.run_state import RunState, runs_of
from jobs.submission.actions import sweep_lock

TRASH = ".trash"


def run(args: argparse.Namespace) -> int:
    if not (args.runs_given or args.failed or args.stale):
        raise ConfigError("say what to move: names of runs or sweeps, --failed, --stale")
    runs = run_lookup.several(args.runs, args.runs_given or run_lookup.sweeps(args.runs))
    named = run_lookup.named(args.runs, args.runs_given)
    trash = _new_trash(args.runs)
    moved: list[tuple[RunState, Path]] = []
    kept: list[RunState] = []
    for sweep in dict.fromkeys(run.sweep for run in runs):
        with sweep_lock(args.runs / sweep):  # so that nothing is submitted while it moves
            there = [run for run in runs if run.sweep == sweep and run.run_json.exists()]
            for state in submitting.read(there):  # others may have been moved while this waited for the lock
                if not _is_meant(state, args):
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
        print_json([{"run": run_lookup.label(state.run), "to": str(target)} for state, target in moved])
    else:
        _tell(moved, kept, args)
    return 0


def _tell(moved: list[tuple[RunState, Path]], kept: list[RunState], args: argparse.Namespace) -> None:
    for state, target in moved:
        did = "would move" if args.dry_run else "moved"
        print(f"{did}  {run_lookup.label(state.run)} ({word_of(state)}) to {target}")
    for state in kept:
        print(f"left   {run_lookup.label(state.run)}: it is {state.state}; {_way_out(state)}")
    if not moved and not kept:
        print("nothing to move")


def _is_meant(state: RunState, args: argparse.Namespace) -> bool:
    """Flags choose among the named runs; without flags all of them are meant."""
    if not (args.failed or args.stale):
        return True
    failed = state.state in ("failed", "lost", "corrupt")
    return bool((args.failed and failed) or (args.stale and state.stale))


def _way_out(state: RunState) -> str:
    if state.silent:
        return f"{state.message}: name this very run if you know it to be dead"
    return "cancel it first" if state.journaled else "started by hand: end it where it runs"


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
    """Copies of the code that only moved runs were submitted with, and words on them to jobs."""
    from jobs.submission import sbatch_entry

    def every() -> list[RunDir]:
        return [run for sweep in run_lookup.sweeps(root) for run in runs_of(root, sweep)]

    with code_snapshot.unreferenced_snapshots(root, every) as folders:
        for folder in folders:
            _move(folder, trash / code_snapshot.SNAPSHOTS_FOLDER / folder.name)
    for word in sbatch_entry.words_without_run(root):
        if word.exists():  # another, at the same time, may have moved it
            _move(word, trash / sbatch_entry.FOLDER / word.name)


def _move_rest(folder: Path, target: Path) -> None:
    """What the last run leaves behind (`sweep.json`, the report) goes with it: the name is free again."""
    for left in sorted(folder.iterdir()):
        if not left.name.startswith("."):
            _move(left, target / left.name)
