"""The variables that an experiment compares, and the environment of an arm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from disttrain.errors import ConfigError
from disttrain.masking import is_secret
from jobs.core.environment import is_launcher_variable
from jobs.fabric.derive import Severity, derive
from jobs.fabric.description import Fabric
from jobs.fabric.registry import registry

Changes = Mapping[str, str | None]
"""Changes of the environment: None removes a variable."""
ALLOW_UNKNOWN = "--allow-unknown"
"""Option for variables of newer libraries than the registry has."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_settings(words: Sequence[str], *, allow_unknown: bool = False) -> dict[str, str]:
    """Values by variable. Raises `ConfigError` for a word that is no assignment, a repeated variable, a
    secret, or a variable of the launcher; unless `allow_unknown`, also for a name that is close to a known
    one of NCCL, gloo, torch or libfabric, and for a value that these do not allow."""
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        refusals = {
            f"{word!r} is not of the form VAR=VALUE": not equals or not _NAME.fullmatch(name),
            f"{name} is given twice; compare two values in two commands": name in settings,
            f"{name} is set by the launcher of the ranks": is_launcher_variable(name),
            f"{name} looks like a secret, and the command is recorded": is_secret(name),
        }
        for refusal in [text for text, holds in refusals.items() if holds][:1]:
            raise ConfigError(refusal, at="fabric ab")
        settings[name] = value
    doubts = [] if allow_unknown else doubtful_settings(settings)
    if doubts:
        raise ConfigError(f"{doubts[0]} With {ALLOW_UNKNOWN} it is compared all the same.", at="fabric ab")
    return settings


def doubtful_settings(settings: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that is unknown and close to a known one, or that does not allow its
    value."""
    known = registry()
    misspelt = {name: known.misspelt(name) for name in settings}
    return [
        f"no known library reads {name!r}; did you mean {misspelt[name]!r}?"
        if misspelt[name]
        else f"{name}={value} is not allowed; it takes {known.variables[name].allowed()}."
        for name, value in settings.items()
        if misspelt[name] or (name in known.variables and not known.variables[name].accepts(value))
    ]


def suggestions(fabric: Fabric, nodes: int, gpus_per_node: int) -> dict[str, str]:
    """The derived variables that only change the speed: those to compare where none is given.

    Variables for correct data and for the connection are left out, because a job without them may compute
    wrong data or fail. Names of devices are left out, because nodes may differ. `gpus_per_node` is 0 on the
    CPU.
    """
    return {
        each.name: each.value
        for each in derive(fabric, nodes, gpus_per_node)
        if each.severity is Severity.SPEED and not each.per_node
    }


def baseline_changes(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Changes of the run's environment that make the baseline: a setting that holds already is removed.

    So a variable of the profile is compared with its absence. A variable of another value keeps that value.
    """
    return {name: None for name, value in settings.items() if environment.get(name) == value}


def changed(environment: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The environment of an arm."""
    return {name: value for name, value in {**environment, **changes}.items() if value is not None}
