"""Which runs and sweeps a word on the command line means."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from disttrain.records.run_directory import RunDir
from jobs.status.run_state import runs_of, subfolders


def sweeps(root: Path) -> list[str]:
    """Names of the sweeps below the runs folder: those that hold a `sweep.json` or a run."""
    return [
        name for name in subfolders(root) if os.path.exists(root / name / "sweep.json") or runs_of(root, name)
    ]


def one_sweep(root: Path, word: str) -> str:
    """The sweep of that name. Raises `ConfigError` with the nearest one there is."""
    known = sweeps(root)
    if word.rstrip("/") in known:
        return word.rstrip("/")
    raise ConfigError(f"no sweep {word!r} in {root}{nearest(word, known) or _are('sweeps', known)}")


def one_run(root: Path, word: str) -> RunDir:
    """The run meant by `sweep/run`, or by a run's name alone where only one sweep has it."""
    sweep, slash, name = word.strip("/").rpartition("/")
    if slash:
        known = {run.name: run for run in runs_of(root, one_sweep(root, sweep))}
        if name in known:
            return known[name]
        raise ConfigError(f"no run {name!r} in {root / sweep}{nearest(name, known) or _are('runs', known)}")
    every = [run for known_sweep in sweeps(root) for run in runs_of(root, known_sweep)]
    found = [run for run in every if run.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{word!r} is a run of several sweeps: {', '.join(map(label, found))}")
    if name in sweeps(root):
        raise ConfigError(
            f"{name!r} is a sweep; name one run of it{_are('runs', map(label, runs_of(root, name)))}"
        )
    raise ConfigError(f"no run {word!r} in {root}{nearest(name, [run.name for run in every])}")


def several(root: Path, words: Iterable[str]) -> list[RunDir]:
    """The runs that the words mean: each a run, or a sweep for all of its runs. Each run once."""
    found: dict[Path, RunDir] = {}
    for word in words:
        name = word.rstrip("/")
        meant = runs_of(root, name) if name in sweeps(root) else [one_run(root, name)]
        found |= {run.path: run for run in meant}
    return list(found.values())


def named(root: Path, words: Iterable[str]) -> set[Path]:
    """The folders of those runs that a word of their own means, rather than their sweep's."""
    known = sweeps(root)
    return {run.path for run in several(root, [word for word in words if word.rstrip("/") not in known])}


def label(run: RunDir) -> str:
    """`sweep/run`."""
    return f"{run.sweep}/{run.name}"


def _are(what: str, names: Iterable[str], shown: int = 8) -> str:
    names = list(names)
    if not names:
        return f"; there are no {what}"
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"; there are: {', '.join(names[:shown])}{more}"
