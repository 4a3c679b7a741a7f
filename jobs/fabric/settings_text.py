"""Variables that a text sets: script, env file, `nccl.conf`, YAML, JSON.

Pure. Of a text, `VAR=value` counts wherever it stands, also under `if` or among the words of a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from disttrain.errors import ConfigError
from jobs.fabric.findings import Setting
from jobs.fabric.nccl_files import variable_lines

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"""(?<![\w$/{{-])({_NAME})=("[^"]*"|'[^']*'|(?:(?!,{_NAME}=)[^\s;&|)"'])*)""")
"""A value ends at a blank, or before the next assignment of a list such as `--export=ALL,A=1,B=2`."""
_COMMENT = re.compile(r"(?:^|\s)#(?!SBATCH).*", re.MULTILINE)
_STARTS_JOB = re.compile(r"#SBATCH|\bsrun\b|^environment:", re.MULTILINE)
"""A script that starts a job, or a site profile."""
_NETWORK = re.compile(r"(?:\s--|\bsrun: *\{?\s*)network[=: ]\s*['\"]?([\w,]+)")
_YAML = (".yaml", ".yml", ".json")
_SHELL_KEYS = ("setup", "node_setup")


@dataclass(frozen=True)
class ReadSettings:
    """Settings of a text; of several settings of a name the last one holds."""

    settings: Mapping[str, Setting]
    srun_network: str | None
    """Value of srun's `--network`, empty without it; None if the text starts no job."""


def read_settings(text: str, name: str) -> ReadSettings:
    """The settings in a text. Raises `ConfigError` for broken YAML, and if a text sets no variable.

    `name` is that of the file, for messages and origins.
    """
    if name.endswith("nccl.conf"):  # of a name given twice, NCCL takes the first value
        lines = reversed(list(variable_lines(text)))
        settings = [Setting(variable, value, f"{name}:{number}") for number, variable, value in lines]
    elif name.endswith(_YAML) or text.lstrip().startswith("{"):
        try:
            settings = list(_of_yaml(yaml.compose(text, Loader=yaml.SafeLoader), name))
        except yaml.YAMLError as error:
            raise ConfigError(f"not YAML or JSON: {str(error).splitlines()[0]}", at=name) from None
    else:
        settings = [each for number, line in _shell_lines(text) for each in _of_line(line, name, number)]
    if not settings and text.strip():
        raise ConfigError("no variable is set; expected VAR=value in a script or file, or YAML", at=name)
    commands = _COMMENT.sub("", text)
    option = _NETWORK.search(commands)
    network = (option[1] if option else "") if _STARTS_JOB.search(commands) else None
    return ReadSettings({each.name: each for each in settings}, network)


def _shell_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments. One that ends in a backslash is joined with the next, and keeps its number."""
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        held += _COMMENT.sub("", line)
        if held.endswith("\\"):
            held = held[:-1] + " "
        else:
            yield start, held
            held, start = "", 0
    yield start, held


def _of_line(line: str, name: str, number: int) -> Iterator[Setting]:
    for variable, value in _ASSIGNMENT.findall(line):
        is_literal = "$" not in value and "`" not in value
        yield Setting(variable, value.strip("\"'"), f"{name}:{number}", is_literal)


def _of_yaml(node: yaml.Node | None, name: str) -> Iterator[Setting]:
    """Settings in mappings, such as `NCCL_DEBUG: WARN` or `NCCL_DEBUG: {value: WARN}`, wherever they stand,
    after those in shell lines of a profile, which they replace."""
    for key, value in sorted(_entries(node).items(), key=lambda entry: entry[0] not in _SHELL_KEYS):
        content = _entries(value).get("value", value)
        if key in _SHELL_KEYS:
            for line in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _of_line(_COMMENT.sub("", str(line.value)), name, line.start_mark.line + 1)
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", key) and isinstance(content, yaml.ScalarNode):
            yield Setting(key, content.value, f"{name}:{content.start_mark.line + 1}")
        else:
            yield from _of_yaml(value, name)


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Values of a mapping by key; empty for another node."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarNode)}
