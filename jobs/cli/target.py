"""Choose the scheduler from `--cluster`, `--profile` and `--slurm`."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence

from disttrain.errors import ConfigError
from jobs.cli.command_output import print_warning
from jobs.schedulers.interface import Doctor, ProfileSelection, Scheduler
from jobs.schedulers.select import doctor_named, scheduler_named
from jobs.status.run_state import RunState


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
