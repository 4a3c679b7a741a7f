"""Choose a scheduler by its name. Each is imported only when it is chosen."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from disttrain.errors import ConfigError
from jobs.schedulers import names

if TYPE_CHECKING:
    from jobs.schedulers.interface import Doctor, ProfileSelection, Scheduler


def scheduler_named(name: str, selection: ProfileSelection | None = None) -> Scheduler:
    """The scheduler of that name, whether or not it answers now.

    Raises `ConfigError` for an unknown name, and for a site profile that cannot be had or that the scheduler
    does not use.
    """
    made: Scheduler = _module(name, "scheduler").SCHEDULER(selection)
    return made


def doctor_named(name: str, selection: ProfileSelection) -> Doctor:
    """The doctor of the scheduler of that name, whether or not the scheduler answers.

    Raises `ConfigError` as `scheduler_named`, and for a scheduler without a doctor.
    """
    made: Doctor = _module(name, "doctor").DOCTOR(selection)
    return made


def _module(name: str, part: str) -> Any:
    found = names(part)
    if name not in found:
        raise ConfigError(f"no {part} {name!r}: there are {', '.join(found)}")
    return importlib.import_module(f"jobs.schedulers.{name}.{part}")
