"""Read settings of variables from YAML: `environment` and shell lines of a profile, `job.env` of a config.

Pure. Values keep their text: YAML's `1` and `true` are not converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from disttrain.errors import ConfigError
from jobs.fabric.findings import Setting

_KEY = re.compile(r"[a-z][a-z0-9_]*")
_SHELL_KEYS = ("setup", "node_setup")
_MAPPINGS = ("environment", "env")
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class YamlSettings:
    """Settings of a profile or a config."""

    settings: tuple[Setting, ...]
    shell_lines: tuple[tuple[str, str], ...]
    """Lines of shell that a profile runs, each with its origin."""
    srun_network: str | None
    """srun's `--network` by a profile, empty without it; None for a config."""


def yaml_settings(text: str, name: str) -> YamlSettings | None:
    """The settings in a YAML mapping; None for a text of another kind. Raises `ConfigError` for a value that
    is neither text nor `{value: text}`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    entries = _entries(root)
    if not entries or not all(_KEY.fullmatch(key) for key in entries):
        return None
    job = _entries(entries.get("job"))
    mappings = [entries[key] for key in _MAPPINGS if key in entries]
    mappings += [job["env"]] if "env" in job else []
    lines = [line for key in _SHELL_KEYS for line in _lines(entries.get(key), name)]
    network = _entries(entries.get("srun")).get("network")
    return YamlSettings(
        tuple(each for mapping in mappings for each in _settings(mapping, name)),
        tuple(lines),
        None if "job" in entries else network.value if isinstance(network, yaml.ScalarNode) else "",
    )


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Values of a mapping by key, with those of mappings that it merges; empty for another node."""
    own: dict[str, yaml.Node] = {}
    merged: dict[str, yaml.Node] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        if key.tag == _MERGE:
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for part in reversed(parts):  # of several, the first one wins
                merged |= _entries(part)
        elif isinstance(key, yaml.ScalarNode):
            own[key.value] = value
    return merged | own


def _settings(mapping: yaml.Node, name: str) -> Iterator[Setting]:
    if not isinstance(mapping, yaml.MappingNode) and mapping.value:
        raise ConfigError("not a mapping from names to values", at=f"{name}:{mapping.start_mark.line + 1}")
    for variable, entry in _entries(mapping).items():
        value = _entries(entry).get("value", entry)
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigError(f"{variable} has no value; allowed: text, or {{value: text}}", at=name)
        yield Setting(variable, value.value, f"{name}:{value.start_mark.line + 1}")


def _lines(node: yaml.Node | None, name: str) -> Iterator[tuple[str, str]]:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    for each in nodes:
        if isinstance(each, yaml.ScalarNode):
            for line in each.value.splitlines():
                yield line, f"{name}:{each.start_mark.line + 1}"
