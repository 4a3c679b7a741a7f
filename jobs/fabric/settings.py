"""Variables that a user or a site sets: in the environment, in NCCL's files, or in a text that is linted.

Pure. Of a text, `VAR=value` counts wherever it stands, also under `if` or among the words of a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from disttrain.errors import ConfigError
from jobs.fabric.description import Fabric
from jobs.fabric.registry import registry
from jobs.fabric.software import variable_lines

ENVIRONMENT = "environment"
"""Origin of a variable that processes inherit."""
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"""(?<![\w$/{{-])({_NAME})=("[^"]*"|'[^']*'|(?:(?!,{_NAME}=)[^\s;&|)"'])*)""")
"""A value ends at a blank, or before the next assignment of a list such as `--export=ALL,A=1,B=2`."""
_COMMENT = re.compile(r"(?:^|[ \t])#(?!SBATCH).*", re.MULTILINE)
_STARTS_JOB = re.compile(r"#SBATCH|\bsrun\b|^environment:", re.MULTILINE)
"""A script that starts a job, or a site profile."""
_NETWORK = re.compile(r"(?:\s--|\bsrun: *\{?\s*)network[=: ]\s*['\"]?([\w,]+)")
_SHELL_KEYS = ("setup", "node_setup")
Line = tuple[int, str, str]
"""Number of the line (0: unknown), name and value of a variable."""
_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Setting:
    """One value of a variable, with its origin."""

    name: str
    value: str
    origin: str
    """`job.env`, the name of a profile, `environment`, or `file:line`; of YAML and JSON, the file."""
    is_literal: bool = True
    """False where a shell computes the value: it is not judged."""


@dataclass(frozen=True)
class ReadSettings:
    """Settings of a text; of several settings of a name the last one holds."""

    settings: Mapping[str, Setting]
    srun_network: str | None
    """Value of srun's `--network`, empty without it; None if the text starts no job."""


def node_settings(
    fabric: Fabric, environ: Mapping[str, str], further: Iterable[tuple[Mapping[str, str], str]] = ()
) -> dict[str, Setting]:
    """Communication variables by NCCL's precedence: the environment, the user's file, the machine's file.

    Sources of `further`, values and their origin, come before all of them, the last one first.
    """
    files = [(file.as_dict(), file.path) for file in reversed(fabric.software.nccl_files)]
    return {
        name: Setting(name, str(value), origin)
        for variables, origin in [*files, (environ, ENVIRONMENT), *further]
        for name, value in variables.items()
        if registry().is_of_interest(name)
    }


def read_settings(text: str, name: str) -> ReadSettings:
    """The settings in a text. Raises `ConfigError` for broken YAML, and if a text sets no variable.

    `name` is that of the file, for messages and origins.
    """
    commands = _COMMENT.sub("", text)
    if name.endswith("nccl.conf"):  # of a name given twice, NCCL takes the first value
        lines = reversed(list(variable_lines(text)))
    elif name.endswith(_YAML) or text.lstrip().startswith("{"):
        import yaml  # agents import this module, and should start quickly

        try:
            lines = iter([*_of_yaml(yaml.load(text, Loader=yaml.BaseLoader))])
        except yaml.YAMLError as error:
            raise ConfigError(f"not YAML or JSON: {str(error).splitlines()[0]}", at=name) from None
    else:
        lines = _assignments(commands)
    settings = {
        variable: Setting(variable, value, f"{name}:{number}" if number else name, not set("$`") & set(value))
        for number, variable, value in lines
    }
    if not settings and text.strip():
        raise ConfigError("no variable is set; expected VAR=value in a script or file, or YAML", at=name)
    option = _NETWORK.search(commands)
    network = (option[1] if option else "") if _STARTS_JOB.search(commands) else None
    return ReadSettings(settings, network)


def _assignments(commands: str) -> Iterator[Line]:
    for match in _ASSIGNMENT.finditer(commands):
        yield commands.count("\n", 0, match.start()) + 1, match[1], match[2].strip("\"'")


def _of_yaml(node: Any) -> Iterator[Line]:
    """Settings in mappings, such as `NCCL_DEBUG: WARN` or `NCCL_DEBUG: {value: WARN}`, wherever they stand,
    after those in shell lines of a profile, which they replace. Line numbers are not known."""
    entries = node if isinstance(node, dict) else {}
    for key, value in sorted(entries.items(), key=lambda entry: entry[0] not in _SHELL_KEYS):
        content = value.get("value") if isinstance(value, dict) else value
        if key in _SHELL_KEYS:
            lines = "\n".join(value if isinstance(value, list) else [str(value)])
            yield from ((0, *line[1:]) for line in _assignments(_COMMENT.sub("", lines)))
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", key) and isinstance(content, str):
            yield 0, key, content
        else:
            yield from _of_yaml(value)
