"""Find the runs and sweeps that arguments name, read their states, and select by state and tag."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

from disttrain.errors import ConfigError, nearest
from disttrain.records.collect_provenance import code_hash
from disttrain.records.exit_causes import ENDED_BY_REQUEST
from disttrain.records.run_directory import RunDir
from jobs.cli.command_output import print_warning
from jobs.cli.progress_bar import progress
from jobs.status import run_state
from jobs.status.refresh import refresh_all
from jobs.status.run_folders import runs_of, subfolders
from jobs.status.run_state import RunState, StateName

STATES = (*get_args(StateName), *ENDED_BY_REQUEST)
"""Values of `--state`, as `RunState.displayed_state` has them."""


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
    sweeps = [find_sweep(root, sweep)] if slash else sweep_names(root)
    runs = [run for known in sweeps for run in runs_of(root, known)]
    matches = [run for run in runs if run.name == run_name]
    if len(matches) > 1:
        raise ConfigError(f"several sweeps have a run {name!r}: {', '.join(map(run_label, matches))}")
    if not matches and not slash and run_name in sweeps:
        matches = runs_of(root, run_name)
        if len(matches) != 1:
            hint = _existing("runs", map(run_label, matches))
            raise ConfigError(f"{run_name!r} is a sweep; name one run of it{hint}")
    if not matches:
        names = [run.name if slash else run_label(run) for run in runs]
        hint = nearest(run_name, [run.name for run in runs]) or _existing("runs", names)
        raise ConfigError(f"no run {run_name!r} in {root / sweep}{hint}")
    return matches[0]


def find_runs(root: Path, names: Iterable[str]) -> list[RunDir]:
    """The named runs, and all runs of the named sweeps, without duplicates. Raises `ConfigError`."""
    known = sweep_names(root)
    runs: dict[Path, RunDir] = {}
    for name in (name.rstrip("/") for name in names):
        matches = runs_of(root, name) if name in known else [find_run(root, name)]
        runs |= {run.path: run for run in matches}
    return list(runs.values())


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


def read_states(runs: Sequence[RunDir]) -> list[RunState]:
    """Current states of these runs, from their files."""
    return run_state.read_states(runs, code_hash=code_hash(), progress=progress)


def refresh_or_warn(states: Sequence[RunState]) -> list[RunState]:
    """Correct the states by a scheduler query; print a warning if the scheduler does not answer."""
    return refresh_all(states, print_warning)


def by_state(args: argparse.Namespace) -> Callable[[RunState], bool]:
    """Whether `--state` selects a run; without it, every run. Raises `ConfigError` for an unknown state."""
    wanted = STATES if args.state is None else [word.strip() for word in args.state.split(",")]
    for word in wanted:
        if word not in STATES:
            raise ConfigError(
                f"{word!r} is not one of {', '.join(STATES)}{nearest(word, STATES)}", at="--state"
            )
    return lambda state: state.displayed_state in wanted


def with_tags(states: Sequence[RunState], tags: Sequence[str]) -> list[RunState]:
    """The runs that have all of these tags. Raises `ConfigError` for a tag that no run has."""
    known = sorted({tag for state in states for tag in state.tags}) if tags else []
    for tag in tags:
        if tag not in known:
            hint = nearest(tag, known) or f"; existing tags: {', '.join(known) or 'none'}"
            raise ConfigError(f"no run here has the tag {tag!r}{hint}", at="--tag")
    return [state for state in states if {*tags} <= {*state.tags}]
