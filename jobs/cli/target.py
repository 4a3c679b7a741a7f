"""The scheduler that a command line means: `--cluster`, `--profile` and `--slurm`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence

from disttrain.errors import ConfigError
from jobs.schedulers.base import ProfileSelection, Scheduler
from jobs.schedulers.select import scheduler_named
from jobs.status.run_state import RunState


def chosen_scheduler(args: argparse.Namespace, there: Sequence[RunState]) -> Scheduler:
    """The scheduler to submit to; `there` are the runs of the sweep so far.

    Raises `ConfigError` where nothing can be submitted to it.
    """
    scheduler = _choose(args, there)
    if args.cluster != "auto" and (why := scheduler.unavailable()):
        raise ConfigError(f"--cluster={args.cluster}: {why}")
    scheduler.check_runs_folder(args.runs)
    return scheduler


def described_scheduler(args: argparse.Namespace, there: Sequence[RunState]) -> Scheduler:
    """The scheduler of a dry run, whether or not it answers. Raises `ConfigError`."""
    return _choose(args, there)


def available_scheduler(name: str) -> Scheduler:
    """The scheduler of recorded runs. Raises `ConfigError` where it does not answer."""
    scheduler = scheduler_named(name)
    if why := scheduler.unavailable():
        raise ConfigError(why)
    return scheduler


def _choose(args: argparse.Namespace, there: Sequence[RunState]) -> Scheduler:
    """`auto` is Slurm where a controller answers, else this machine.

    Where sbatch is installed and yet not chosen, a warning goes to stderr. Runs that are on Slurm already do not
    go to this machine by `auto`.
    """
    selection = ProfileSelection(args.profile, tuple(args.slurm))
    if args.cluster != "auto":
        return scheduler_named(args.cluster, selection)
    why = scheduler_named("slurm").unavailable()
    if why is None:
        return scheduler_named("slurm", selection)
    if any(state.cluster == "slurm" for state in there):
        raise ConfigError(
            f"--cluster=auto: these runs are on Slurm, and {why.replace('no Slurm', 'no')}; "
            "--cluster local submits to this machine all the same"
        )
    if shutil.which("sbatch") is not None:
        print(f"warning: sbatch is here but {why}: using this machine", file=sys.stderr)
    return scheduler_named("local", selection)
