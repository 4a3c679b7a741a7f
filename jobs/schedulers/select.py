"""Choose a scheduler by its name. Each is imported only when it is chosen."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from disttrain.errors import ConfigError
from jobs.schedulers import names

if TYPE_CHECKING:
    from jobs.node.allocation import CurrentAllocation
    from jobs.schedulers.base import Doctor, ProfileSelection, Scheduler


def scheduler_named(name: str, selection: ProfileSelection | None = None) -> Scheduler:
    """The scheduler of that name, whether or not it answers now.

    Raises `ConfigError` for an unknown name, and for a site profile that cannot be had or that the scheduler
    does not use.
    """
    if name not in names():
        raise ConfigError(f"no scheduler {name!r}: there are {', '.join(names())}")
    made: Scheduler = importlib.import_module(f"jobs.schedulers.{name}.scheduler").SCHEDULER(selection)
    return made


def doctor_named(name: str, selection: ProfileSelection) -> Doctor:
    """The doctor of the scheduler of that name, whether or not the scheduler answers.

    Raises `ConfigError` as `scheduler_named`.
    """
    if name == "local":
        from jobs.schedulers.local.doctor import LocalDoctor

        return LocalDoctor(selection)
    if name == "slurm":
        from jobs.schedulers.slurm.doctor import SlurmDoctor

        return SlurmDoctor(selection)
    raise ConfigError(f"no scheduler {name!r}: there are {', '.join(names())}")


def current_allocation(environ: Mapping[str, str] = os.environ) -> CurrentAllocation:
    """The job that this process belongs to. Raises `ConfigError` outside of any."""
    if "SLURM_JOB_ID" in environ:
        from jobs.schedulers.slurm.allocation import SlurmAllocation

        return SlurmAllocation(environ)
    raise ConfigError("this process is in no job: SLURM_JOB_ID is not set")
