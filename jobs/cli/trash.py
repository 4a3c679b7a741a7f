"""The trash folder of `clean`: `RUNS/.trash/<time>/` is laid out like `RUNS`, one folder for each call."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.cli import selection
from jobs.cli.command_output import add_json
from jobs.cli.selection import run_label
from jobs.core import code_copy, lock, run_code
from jobs.status.run_folders import runs_of, subfolders
from jobs.status.run_state import RunState
from jobs.submission import by_hand
from sweeps.base_config import first_difference

TRASH = ".trash"
_DELETING = ".deleting-"


def move(args: argparse.Namespace) -> None:
    """Move the selected runs that are not active, then what no remaining run needs."""
    folder = _new_folder(args.runs)
    moved, kept = _move_runs(args, folder)
    if moved and not args.dry_run:
        _move_code(args.runs, folder)
    for state in moved:
        verb = "would move" if args.dry_run else "moved"
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


def _move_runs(args: argparse.Namespace, folder: Path) -> tuple[list[RunState], list[RunState]]:
    """The runs that are moved, unless this is a dry run, and the active ones that stay."""
    root = args.runs
    moved: list[RunState] = []
    kept: list[RunState] = []
    runs = selection.find_runs(root, args.runs_given or selection.sweep_names(root))
    if args.tags:
        runs = [state.run for state in selection.with_tags(selection.read_states(runs), args.tags)]
    named = selection.runs_given_by_name(root, args.runs_given)
    for sweep in dict.fromkeys(run.sweep for run in runs):
        with lock.sweep_lock(root / sweep):  # no submission while runs are moved
            present = [run for run in runs if run.sweep == sweep and run.run_json.exists()]
            # Another `clean` may have moved some before the lock. The scheduler is queried, since a cancelled
            # job may end before it records its end.
            states = selection.refresh_or_warn(selection.read_states(present))
            for state in (state for state in states if _is_selected(state, args)):
                stays = state.active and not (state.silent and state.run.path in named)
                (kept if stays else moved).append(state)
                if not stays and not args.dry_run:
                    _rename(state.run.path, folder / state.label)
            if moved and not args.dry_run and not runs_of(root, sweep):  # so that the sweep's name is free
                for path in sorted((root / sweep).iterdir()):
                    if not path.name.startswith("."):
                        _rename(path, folder / sweep / path.name)
    return moved, kept


def _is_selected(state: RunState, args: argparse.Namespace) -> bool:
    """Flags select among the named runs; without a flag all named runs are selected."""
    failed = args.failed and state.state in ("failed", "lost", "corrupt")
    return failed or (args.stale and state.stale) or not (args.failed or args.stale)


def _new_folder(root: Path) -> Path:
    """A free name for the folder of this call."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (root / TRASH / f"{stamp}{suffix}" for suffix in suffixes)
    return next(path for path in paths if not path.exists())


def _rename(path: Path, target: Path) -> None:
    """Rename `path` to `target`, whose parent is created. Raises `ConfigError`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    except OSError as error:
        raise ConfigError(f"cannot move {path} to {target}: {error.strerror}") from None


def _move_code(root: Path, folder: Path) -> None:
    """Move code copies, and plans of sbatch jobs, that no remaining run refers to."""
    with code_copy.unreferenced_copies(root, lambda: _runs_in(root)) as copies:
        for copy in copies:
            _rename(copy, folder / run_code.FOLDER / copy.name)
    for plan in by_hand.plans_without_run(root):
        if plan.exists():  # a concurrent `clean` may have moved it
            _rename(plan, folder / by_hand.FOLDER / plan.name)


def _folders(root: Path) -> list[Path]:
    """The folders of all calls, oldest first."""
    return [root / TRASH / name for name in subfolders(root / TRASH)]


def _runs_in(folder: Path) -> list[RunDir]:
    return [run for sweep in selection.sweep_names(folder) for run in runs_of(folder, sweep)]


def restore(args: argparse.Namespace) -> None:
    """Move trashed runs back, with the shared files of their sweep and with the code that they refer to.

    Raises `ConfigError` before anything is moved if a run cannot return.
    """
    root, runs = args.runs, _runs_to_restore(args.runs, args.runs_given)
    targets = [RunDir(root / run.sweep / run.name) for run in runs]
    for run, target in zip(runs, targets, strict=True):
        _refuse_restore(run, target)
    if not args.dry_run:
        with code_copy.hold_copies(root):
            for run, target in zip(runs, targets, strict=True):
                _restore_run(run, target, root)
        for folder in _folders(root):
            for path in (*folder.iterdir(), folder):
                with contextlib.suppress(OSError):  # not empty, or a file
                    path.rmdir()
    verb = "would restore" if args.dry_run else "restored"
    for run in targets:
        print(f"{verb}  {run_label(run)} to {run.path}")
    if not runs:
        print("nothing to restore: the trash is empty")
    rows = [{"sweep": run.sweep, "run": run.name, "to": str(run.path)} for run in targets]
    add_json(selection.read_states(runs if args.dry_run else targets), restored=rows)


def _runs_to_restore(root: Path, names: Iterable[str]) -> list[RunDir]:
    """The newest trashed copy of each named run and of each run of a named sweep.

    Without names: the runs of the newest folder, which undoes the last `clean`.
    """
    by_call = [runs for folder in _folders(root) if (runs := _runs_in(folder))]
    if not names:
        return by_call[-1] if by_call else []
    newest = {run_label(run): run for runs in by_call for run in runs}
    chosen: dict[str, RunDir] = {}
    for name in (name.strip("/") for name in names):
        runs = [run for label, run in newest.items() if name in (label, run.sweep)]
        runs = runs or [selection.only_run([*newest.values()], name, root / TRASH)]
        chosen |= {run_label(run): run for run in runs}
    return list(chosen.values())


def _refuse_restore(run: RunDir, target: RunDir) -> None:
    """Raise `ConfigError` if a run of this name exists, or its sweep has another base config now."""
    if target.path.exists():
        raise ConfigError(f"cannot restore {run_label(run)}: {target.path} exists; move it away first")
    folder = target.path.parent
    then, now = _own_sweep_json(run), read_json_or_none(folder / "sweep.json")
    if then is None or now is None:
        return
    difference = first_difference((read_json_or_none(then) or {}).get("base", {}), now.get("base", {}))
    if difference:
        raise ConfigError(
            f"cannot restore {run_label(run)}: sweep {run.sweep!r} in {folder.parent} has another base "
            f"config: {difference}"
        )


def _restore_run(run: RunDir, target: RunDir, root: Path) -> None:
    with lock.sweep_lock(target.path.parent):
        if (sweep_json := _own_sweep_json(run)) is not None:
            for path in sorted(sweep_json.parent.iterdir()):  # also the report, but no run
                present = target.path.with_name(path.name)
                if not (path / "run.json").exists() and not present.exists():
                    _rename(path, present)
        _rename(run.path, target.path)
    record = read_json_or_none(target.run_json) or {}
    for folder in _folders(root):
        for code in run_code.copies_of_run(target, record):
            copy = folder / run_code.FOLDER / code.name
            if copy.exists() and not code.exists():
                _rename(copy, code)
        for plan in (folder / by_hand.FOLDER).glob("*.json"):
            if (read_json_or_none(plan) or {}).get("run") == run_label(run):
                _rename(plan, root / by_hand.FOLDER / plan.name)


def _own_sweep_json(run: RunDir) -> Path | None:
    """The `sweep.json` that a trashed run belonged to; None if it has stayed in the sweep's folder.

    `sweep.json` follows with the last run, so it is in the run's own folder or in the next one that has it.
    """
    calls = _folders(run.path.parents[3])
    later = calls[calls.index(run.path.parents[1]) :]
    return next((path for call in later if (path := call / run.sweep / "sweep.json").exists()), None)


def purge(args: argparse.Namespace) -> None:
    """Delete the trash for good. Raises `ConfigError`."""
    folders = _folders(args.runs)
    deleted = [{"folder": str(path), "runs": [run_label(run) for run in _runs_in(path)]} for path in folders]
    if not args.dry_run:
        try:
            for folder in folders:  # renamed first: a concurrent `clean` must not fill what is deleted
                os.rename(folder, folder.with_name(f"{_DELETING}{folder.name}-{os.urandom(4).hex()}"))
            for path in (args.runs / TRASH).glob(f"{_DELETING}*"):  # also those of an interrupted call
                shutil.rmtree(path)
        except OSError as error:
            raise ConfigError(f"cannot delete {error.filename}: {error.strerror}") from None
    for each in deleted:
        verb = "would delete" if args.dry_run else "deleted"
        print(f"{verb}  {each['folder']} (runs: {', '.join(each['runs']) or 'none'})")
    if not deleted:
        print("nothing to delete: the trash is empty")
    add_json(deleted=deleted)
