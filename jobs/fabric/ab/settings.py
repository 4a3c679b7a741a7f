"""`VAR=VALUE` arguments, and the environment with and without each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from disttrain.config.masking import is_secret
from disttrain.errors import ConfigError
from jobs.core.environment import is_launcher_variable
from jobs.fabric.registry import registry

Variables = Mapping[str, str]
"""Environment variables that a job sets, by name."""
ALLOW_UNKNOWN = "--allow-unknown"
"""Option for variables of newer libraries than the registry has."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_settings(words: Sequence[str], *, allow_unknown: bool = False) -> dict[str, str]:
    """Values by variable. Raises `ConfigError` for a word that is no assignment, a repeated variable, a
    secret, or a variable of the launcher; unless `allow_unknown`, also for a name that is close to a known
    one of NCCL, gloo, torch or libfabric, and for a value that these do not allow."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(f"{word!r} is not of the form VAR=VALUE", at="fabric ab")
        if name in found:
            raise ConfigError(f"{name} is given twice; compare two values in two commands", at="fabric ab")
        if is_launcher_variable(name):
            raise ConfigError(f"{name} is set by the launcher of the ranks", at="fabric ab")
        if is_secret(name):
            raise ConfigError(f"{name} looks like a secret, and the command is recorded", at="fabric ab")
        found[name] = value
    doubts = doubtful_settings(found)
    if doubts and not allow_unknown:
        raise ConfigError(f"{doubts[0]} With {ALLOW_UNKNOWN} it is compared all the same.", at="fabric ab")
    return found


def doubtful_settings(settings: Variables) -> list[str]:
    """One sentence for each variable that is unknown and close to a known one, or that does not allow its
    value."""
    known = registry()
    found = []
    for name, value in settings.items():
        variable, meant = known.get(name), known.misspelt(name)
        if meant is not None:
            found.append(f"no known library reads {name!r}; did you mean {meant!r}?")
        elif variable is not None and not variable.accepts(value):
            found.append(f"{name}={value} is not allowed; it takes {variable.allowed()}.")
    return found


def baseline_changes(settings: Variables, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Changes of the run's environment that make the baseline: a setting that holds already is removed.

    So a variable of the profile is compared with its absence. A variable of another value keeps that value.
    """
    return {name: None for name, value in settings.items() if environment.get(name) == value}


def changed(environment: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with these variables; None removes one."""
    merged = {**environment, **changes}
    return {name: value for name, value in merged.items() if value is not None}
