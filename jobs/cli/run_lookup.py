"""Find the runs and sweeps that command-line arguments name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from disttrain.records.run_directory import RunDir
from jobs.status.run_folders import runs_of, subfolders


def sweep_names(root: Path) -> list[str]:
    """Folders below the runs folder that hold a `sweep.json` or a run, and that this user may read."""
    return [name for name in subfolders(root) if _is_sweep(root, name)]


def _is_sweep(root: Path, name: str) -> bool:
    with contextlib.suppress(ConfigError):
        return os.path.exists(root / name / "sweep.json") or bool(runs_of(root, name))
    return False


def find_sweep(root: Path, name: str) -> str:
    """The sweep of that name. Raises `ConfigError` with the nearest existing one."""
    known = sweep_names(root)
    if name.rstrip("/") in known:
        return name.rstrip("/")
    raise ConfigError(f"no sweep {name!r} in {root}{nearest(name, known) or _existing('sweeps', known)}")


def find_run(root: Path, name: str) -> RunDir:
    """The run `sweep/run`, the only run of that name, or the only run of that sweep. Raises `ConfigError`."""
    sweep, slash, run_name = name.strip("/").rpartition("/")
    if slash:
        known = {run.name: run for run in runs_of(root, find_sweep(root, sweep))}
        if run_name in known:
            return known[run_name]
        hint = nearest(run_name, known) or _existing("runs", known)
        raise ConfigError(f"no run {run_name!r} in {root / sweep}{hint}")
    every = [run for known_sweep in sweep_names(root) for run in runs_of(root, known_sweep)]
    found = [run for run in every if run.name == run_name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"several sweeps have a run {name!r}: {', '.join(map(run_label, found))}")
    if run_name in sweep_names(root):
        runs = runs_of(root, run_name)
        if len(runs) == 1:
            return runs[0]
        hint = _existing("runs", map(run_label, runs))
        raise ConfigError(f"{run_name!r} is a sweep; name one run of it{hint}")
    raise ConfigError(f"no run {name!r} in {root}{nearest(run_name, [run.name for run in every])}")


def find_runs(root: Path, names: Iterable[str]) -> list[RunDir]:
    """The named runs, and all runs of the named sweeps, without duplicates. Raises `ConfigError`."""
    found: dict[Path, RunDir] = {}
    for name in names:
        stripped = name.rstrip("/")
        matches = runs_of(root, stripped) if stripped in sweep_names(root) else [find_run(root, stripped)]
        found |= {run.path: run for run in matches}
    return list(found.values())


def runs_given_by_name(root: Path, names: Iterable[str]) -> set[Path]:
    """Folders of the runs that are named themselves, not through their sweep."""
    known = sweep_names(root)
    return {run.path for run in find_runs(root, [name for name in names if name.rstrip("/") not in known])}


def run_label(run: RunDir) -> str:
    """`sweep/run`."""
    return f"{run.sweep}/{run.name}"


def _existing(kind: str, names: Iterable[str], shown: int = 8) -> str:
    names = list(names)
    if not names:
        return f"; no {kind} exist"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"; existing {kind}: {', '.join(names[:shown])}{more}"
