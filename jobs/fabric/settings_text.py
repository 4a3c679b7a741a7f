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
_COMMENT = re.compile(r"(?:^|\s)#(?!SBATCH).*")
_NETWORK = re.compile(r"\s--network[= ]['\"]?([\w,]+)")
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
    network = None
    if name.endswith("nccl.conf"):  # of a name given twice, NCCL takes the first value
        lines = [(f"{name}:{number}", variable, value) for number, variable, value in variable_lines(text)]
        settings = [Setting(variable, value, origin) for origin, variable, value in reversed(lines)]
    elif name.endswith(_YAML) or text.lstrip().startswith("{"):
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise ConfigError(f"not YAML or JSON: {str(error).splitlines()[0]}", at=name) from None
        shell, mappings = _of_yaml(root, name)
        settings = [*shell, *mappings]  # the variables of a profile replace those of its shell lines
        top = _entries(root)
        if "srun" in top or "environment" in top:  # a profile
            option = _entries(top.get("srun")).get("network")
            network = option.value if isinstance(option, yaml.ScalarNode) else ""
    else:
        lines_of_shell = list(_shell_lines(text))
        settings = [each for number, line in lines_of_shell for each in _of_line(line, f"{name}:{number}")]
        starts = [line for _, line in lines_of_shell if re.search(r"#SBATCH|\bsrun\b", line)]
        if starts:
            options = (match[1] for line in starts if (match := _NETWORK.search(line)))
            network = next(options, "")
    if not settings and text.strip():
        raise ConfigError("no variable is set; expected VAR=value in a script or file, or YAML", at=name)
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


def _of_line(line: str, origin: str) -> Iterator[Setting]:
    for name, value in _ASSIGNMENT.findall(line):
        text = value.strip("\"'")
        nested = list(_of_line(text, origin)) if value != text else []  # `--export="ALL,A=1"`
        yield from nested or [Setting(name, text, origin, is_literal="$" not in text and "`" not in text)]


def _of_yaml(node: yaml.Node | None, name: str) -> tuple[list[Setting], list[Setting]]:
    """Settings in shell lines of a profile, and those in mappings, such as `NCCL_DEBUG: WARN` or
    `NCCL_DEBUG: {value: WARN}`, wherever they stand."""
    shell: list[Setting] = []
    mappings: list[Setting] = []
    for key, value in _entries(node).items():
        content = _entries(value).get("value", value)
        if key in _SHELL_KEYS:
            for line in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                shell += _of_line(_COMMENT.sub("", str(line.value)), f"{name}:{line.start_mark.line + 1}")
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", key) and isinstance(content, yaml.ScalarNode):
            mappings.append(Setting(key, content.value, f"{name}:{content.start_mark.line + 1}"))
        else:
            below = _of_yaml(value, name)
            shell, mappings = shell + below[0], mappings + below[1]
    return shell, mappings


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Values of a mapping by key; empty for another node."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarNode)}
