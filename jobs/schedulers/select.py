"""Choose a scheduler by its name. Each is imported only when it is chosen."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from disttrain.errors import ConfigError
from jobs.schedulers.base import Scheduler

if TYPE_CHECKING:
    from jobs.schedulers.slurm.profile_selection import ProfileSelection


def choose(
    name: str = "auto", choice: ProfileSelection | None = None, *, on_slurm: bool = False
) -> Scheduler:
    """The cluster of that name; `auto` is Slurm when its controller answers, else this machine.

    Where Slurm is installed and yet not chosen, says so on stderr. `on_slurm`: some of the runs meant are
    there already, so `auto` does not take this machine for them. `choice` is of the site profile: raises
    `ConfigError` if it cannot be had, or if there is no site.
    """
    from jobs.schedulers.slurm.commands import answers

    if name not in ("auto", "local", "slurm"):
        raise ConfigError(f"--cluster={name!r} is not one of auto, slurm, local")
    if name == "local":
        return named("local", choice)
    if answers():
        return named("slurm", choice)
    if name == "slurm":
        raise ConfigError("--cluster=slurm: no Slurm controller answers (`scontrol ping`)")
    if on_slurm:
        raise ConfigError(
            "--cluster=auto: these runs are on Slurm, and no controller answers (`scontrol ping`); "
            "--cluster local submits to this machine all the same"
        )
    if shutil.which("sbatch") is not None:
        print(
            "warning: sbatch is here but no Slurm controller answers (`scontrol ping`): using this machine",
            file=sys.stderr,
        )
    return named("local", choice)


def named(name: str, choice: ProfileSelection | None = None) -> Scheduler:
    """The cluster of that name, whether or not it answers now."""
    from jobs.schedulers.local.scheduler import LocalScheduler
    from jobs.schedulers.slurm.scheduler import SlurmScheduler

    if name == "local":
        if choice is not None and choice.given:
            raise ConfigError(f"{choice.origin} is for Slurm, and these runs go to this machine")
        return LocalScheduler()
    if choice is None:
        return SlurmScheduler()
    choice.resolve()
    return SlurmScheduler(choice)
