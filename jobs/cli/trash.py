"""The trash folder of `clean`: `RUNS/.trash/<time>/` is laid out like `RUNS`, one folder for each call."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.cli.selection import run_label, sweep_names
from jobs.core import code_copy, run_code
from jobs.core.lock import sweep_lock
from jobs.status.run_folders import runs_of, subfolders
from jobs.submission import sbatch_job
from sweeps.base_config import first_difference

TRASH = ".trash"
_DELETING = ".deleting-"


def new_folder(root: Path) -> Path:
    """A free name for the folder of this call."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (root / TRASH / f"{stamp}{suffix}" for suffix in suffixes)
    return next(path for path in paths if not path.exists())


def move(path: Path, target: Path) -> None:
    """Rename `path` to `target`, whose parent is created. Raises `ConfigError`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    except OSError as error:
        raise ConfigError(f"cannot move {path} to {target}: {error.strerror}") from None


def folders(root: Path) -> list[Path]:
    """The folders of all calls, oldest first."""
    return [root / TRASH / name for name in subfolders(root / TRASH)]


def runs_in(folder: Path) -> list[RunDir]:
    """The runs of all sweeps in a folder."""
    return [run for sweep in sweep_names(folder) for run in runs_of(folder, sweep)]


def runs_to_restore(root: Path, names: Iterable[str]) -> list[RunDir]:
    """The newest trashed copy of each named run and of each run of a named sweep.

    Without names: the runs of the newest folder, which undoes the last `clean`. Raises `ConfigError` for a
    name that is not in the trash, and before anything is moved if a run cannot return.
    """
    by_call = [runs for folder in folders(root) if (runs := runs_in(folder))]
    every = {run_label(run): run for runs in by_call for run in runs}
    chosen: dict[str, RunDir] = {}
    for name in (name.strip("/") for name in names):
        labels = [label for label, run in every.items() if name in (label, run.sweep)]
        if not labels:
            labels = [label for label, run in every.items() if run.name == name]
            if len(labels) > 1:
                raise ConfigError(
                    f"several sweeps have a run {name!r} in {root / TRASH}: {', '.join(labels)}"
                )
        if not labels:
            raise ConfigError(f"no run or sweep {name!r} in {root / TRASH}{nearest(name, every)}")
        chosen |= {label: every[label] for label in labels}
    runs = list(chosen.values()) if names else by_call[-1] if by_call else []
    for run in runs:
        _check_free(run, root)
    return runs


def restore(runs: Iterable[RunDir], root: Path) -> None:
    """Move trashed runs back, with the shared files of their sweep and with the code that they refer to."""
    with code_copy.hold_copies(root):
        for run in runs:
            with sweep_lock(root / run.sweep):
                target = root / run.sweep / run.name
                if (own := _own_sweep_json(run, root)) is not None:
                    for path in sorted(own.parent.iterdir()):  # also the report, but no run
                        if not (path / "run.json").exists() and not (target.parent / path.name).exists():
                            move(path, target.parent / path.name)
                move(run.path, target)
            record = read_json_or_none(target / "run.json") or {}
            for folder in folders(root):
                for code in run_code.copies_of_run(RunDir(target), record):
                    copy = folder / run_code.FOLDER / code.name
                    if copy.exists() and not code.exists():
                        move(copy, code)
                for plan in (folder / sbatch_job.FOLDER).glob("*.json"):
                    if (read_json_or_none(plan) or {}).get("run") == run_label(run):
                        move(plan, root / sbatch_job.FOLDER / plan.name)
    for folder in folders(root):
        for path in (*folder.iterdir(), folder):
            with contextlib.suppress(OSError):  # not empty, or a file
                path.rmdir()


def purge(root: Path) -> None:
    """Delete the trash for good. Raises `ConfigError`."""
    try:
        for folder in folders(root):  # renamed first: a concurrent `clean` must not fill what is deleted
            os.rename(folder, folder.with_name(f"{_DELETING}{folder.name}-{os.urandom(4).hex()}"))
        for path in (root / TRASH).glob(f"{_DELETING}*"):  # also those of an interrupted call
            shutil.rmtree(path)
    except OSError as error:
        raise ConfigError(f"cannot delete {error.filename}: {error.strerror}") from None


def move_rest(root: Path, sweep: str, target: Path) -> None:
    """Move `sweep.json` and the report after the last run, so that the sweep's name is free."""
    if not runs_of(root, sweep):
        for path in sorted((root / sweep).iterdir()):
            if not path.name.startswith("."):
                move(path, target / sweep / path.name)


def move_code(root: Path, target: Path) -> None:
    """Move code copies, and plans of sbatch jobs, that no remaining run refers to."""
    with code_copy.unreferenced_copies(root, lambda: runs_in(root)) as copies:
        for copy in copies:
            move(copy, target / run_code.FOLDER / copy.name)
    for plan in sbatch_job.plans_without_run(root):
        if plan.exists():  # a concurrent `clean` may have moved it
            move(plan, target / sbatch_job.FOLDER / plan.name)


def _check_free(run: RunDir, root: Path) -> None:
    """Raise `ConfigError` if a run of this name exists, or its sweep has another base config now."""
    target = root / run.sweep / run.name
    if target.exists():
        raise ConfigError(f"cannot restore {run_label(run)}: {target} exists; move it away first")
    own = _own_sweep_json(run, root)
    now = read_json_or_none(root / run.sweep / "sweep.json")
    if own is None or now is None:
        return
    difference = first_difference((read_json_or_none(own) or {}).get("base", {}), now.get("base", {}))
    if difference:
        raise ConfigError(
            f"cannot restore {run_label(run)}: sweep {run.sweep!r} in {root} has another base config: "
            f"{difference}"
        )


def _own_sweep_json(run: RunDir, root: Path) -> Path | None:
    """The `sweep.json` that a trashed run belonged to; None if it has stayed in the sweep's folder.

    `sweep.json` follows with the last run, so it is in the run's own folder or in the next one that has it.
    """
    trashed = run.path.parent.parent
    later = folders(root)[folders(root).index(trashed) :]
    return next((path for folder in later if (path := folder / run.sweep / "sweep.json").exists()), None)
