"""Find the runs, sweeps and schedulers that arguments name, read states, and select by state and tag."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

from disttrain.errors import ConfigError, nearest
from disttrain.records.collect_provenance import code_hash
from disttrain.records.exit_causes import ENDED_BY_REQUEST
from disttrain.records.run_directory import RunDir
from jobs.cli.command_output import print_warning
from jobs.cli.progress_bar import progress
from jobs.core.follow_ups import parent
from jobs.schedulers.interface import Doctor, ProfileSelection, Scheduler
from jobs.schedulers.select import doctor_named, scheduler_named
from jobs.status import run_state
from jobs.status.refresh import refresh_all
from jobs.status.run_folders import runs_of, subfolders
from jobs.status.run_state import RunState, StateName

STATES = (*get_args(StateName), *ENDED_BY_REQUEST)
"""Values of `--state`, as `RunState.displayed_state` has them."""
_SHOWN = 8


def sweep_names(root: Path) -> list[str]:
    """Folders below the runs folder that hold a `sweep.json` or a run, and that this user may read."""
    names = []
    for name in subfolders(root):
        with contextlib.suppress(ConfigError):
            if os.path.exists(root / name / "sweep.json") or runs_of(root, name):
                names.append(name)
    return names


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
    if not slash and run_name in sweeps and all(run.name != run_name for run in runs):
        runs = runs_of(root, run_name)
        if len(runs) != 1:
            hint = _existing("runs", map(run_label, runs))
            raise ConfigError(f"{run_name!r} is a sweep; name one run of it{hint}")
        return runs[0]
    return only_run(runs, run_name, root / sweep, () if slash else sweeps)


def only_run(runs: Sequence[RunDir], name: str, folder: Path, sweeps: Sequence[str] = ()) -> RunDir:
    """The only one of `runs`, those of a folder, that has this name. Raises `ConfigError`.

    `sweeps` are the names of sweeps, where one may be meant.
    """
    matches = [run for run in runs if run.name == name]
    if len(matches) > 1:
        raise ConfigError(f"several sweeps have a run {name!r}: {', '.join(map(run_label, matches))}")
    if not matches:
        near = nearest(name, [*(run.name for run in runs), *map(run_label, runs), *sweeps])
        kind = "run or sweep" if sweeps else "run"
        raise ConfigError(f"no {kind} {name!r} in {folder}{near or _existing('runs', map(run_label, runs))}")
    return matches[0]


def find_runs(root: Path, names: Iterable[str]) -> list[RunDir]:
    """The named runs, and all runs of the named sweeps, without duplicates. Raises `ConfigError`."""
    known = sweep_names(root)
    runs: dict[Path, RunDir] = {}
    for name in (name.rstrip("/") for name in names):
        matches = runs_of(root, name) if name in known else [find_run(root, name)]
        runs |= {run.path: run for run in matches}
    return list(runs.values())


def follow_ups_of(root: Path, runs: Sequence[RunDir]) -> list[RunDir]:
    """The runs besides these that these submitted by `job.on_done` and `job.on_checkpoint`."""
    existing = [run for sweep in dict.fromkeys(run.sweep for run in runs) for run in runs_of(root, sweep)]
    known = {run_label(run) for run in runs}
    return [run for run in existing if run not in runs and f"{run.sweep}/{parent(run)}" in known]


def awaited_runs(root: Path, names: Iterable[str], own: Sequence[RunDir], flag: str) -> list[RunDir]:
    """The runs of these names among `own`, those of this command, and else the existing ones.

    The name of a sweep stands for its runs except `own`. Raises `ConfigError`.
    """
    runs: dict[RunDir, None] = {}
    for name in (name.strip("/") for name in names):
        matches = [run for run in own if name in (run.name, run_label(run))]
        try:
            matches = matches or [run for run in find_runs(root, [name]) if run not in own]
        except ConfigError as error:
            raise ConfigError(str(error), at=flag) from None
        if not matches:
            raise ConfigError(f"sweep {name!r} has no run but those of this command", at=flag)
        runs |= dict.fromkeys(matches)
    return list(runs)


def runs_given_by_name(root: Path, names: Iterable[str]) -> set[Path]:
    """Folders of the runs that are named themselves, not through their sweep."""
    known = sweep_names(root)
    return {run.path for run in find_runs(root, [name for name in names if name.rstrip("/") not in known])}


def run_label(run: RunDir) -> str:
    """`sweep/run`."""
    return f"{run.sweep}/{run.name}"


def _existing(kind: str, names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; existing {kind}: {', '.join(names[:_SHOWN])}{more}" if names else f"; no {kind} exist"


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


def chosen_scheduler(args: argparse.Namespace, existing: Sequence[RunState]) -> Scheduler:
    """The scheduler to submit to; `existing` are the runs of the sweep so far.

    Raises `ConfigError` when it does not accept jobs.
    """
    scheduler = described_scheduler(args, existing)
    if args.cluster != "auto" and (reason := scheduler.unavailable()):
        raise ConfigError(f"--cluster={args.cluster}: {reason}")
    return scheduler


def scheduler_to_resume(
    args: argparse.Namespace, cluster: str | None, existing: Sequence[RunState]
) -> Scheduler:
    """The scheduler for runs whose last submission went to `cluster` (`slurm`, `local` or None).

    `auto` keeps runs of this machine on this machine. Raises `ConfigError` as `chosen_scheduler`.
    """
    if args.cluster == "auto" and cluster == "local":
        return scheduler_named("local", ProfileSelection(args.profile, tuple(args.slurm)))
    return chosen_scheduler(args, existing)


def described_scheduler(args: argparse.Namespace, existing: Sequence[RunState]) -> Scheduler:
    """The scheduler of a dry run, which need not answer. Raises `ConfigError`."""
    scheduler = _choose(args, existing)
    scheduler.check_runs_folder(args.runs)
    return scheduler


def available_scheduler(name: str) -> Scheduler:
    """The scheduler of recorded runs. Raises `ConfigError` when it does not answer."""
    scheduler = scheduler_named(name)
    if reason := scheduler.unavailable():
        raise ConfigError(reason)
    return scheduler


def answering_cluster() -> Scheduler | None:
    """The scheduler of the cluster; None where no cluster answers."""
    scheduler = scheduler_named("slurm")
    return None if scheduler.unavailable() else scheduler


def chosen_doctor(args: argparse.Namespace) -> Doctor:
    """The doctor by `--cluster`; `auto` is Slurm where sbatch is installed, though its controller be silent.

    Raises `ConfigError` for a site profile that cannot be read or that this machine does not use.
    """
    name = args.cluster
    if name == "auto":
        name = "slurm" if shutil.which("sbatch") is not None else "local"
    return doctor_named(name, ProfileSelection(args.profile, tuple(args.slurm)))


def _choose(args: argparse.Namespace, existing: Sequence[RunState]) -> Scheduler:
    """`auto` is Slurm if its controller answers, else this machine.

    If sbatch is installed and Slurm does not answer, print a warning. `auto` does not move runs from Slurm to
    this machine: it raises `ConfigError`.
    """
    selection = ProfileSelection(args.profile, tuple(args.slurm))
    if args.cluster != "auto":
        return scheduler_named(args.cluster, selection)
    reason = scheduler_named("slurm").unavailable()
    if reason is None:
        return scheduler_named("slurm", selection)
    if any(state.cluster == "slurm" for state in existing):
        raise ConfigError(
            f"--cluster=auto: these runs are on Slurm, and {reason.replace('no Slurm', 'no')}; "
            "--cluster local submits to this machine anyway"
        )
    if shutil.which("sbatch") is not None:
        print_warning(f"sbatch is installed but {reason}: using this machine")
    return scheduler_named("local", selection)
