"""YAML files, flags and overrides become a checked `Config`; an error is one line with file and line.

A `Draft` is a config before the check: nested plain data, and the origin of each dotted key. Overrides are
set in the draft, then `check` returns a `Config`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from disttrain.config.batch_plan import BatchPlan, Scaling, scale_batch
from disttrain.config.config_tree import OF_A_COMMAND, Config, config_fields
from disttrain.config.dotted_keys import get_key
from disttrain.config.options import BUILT_SECTIONS, OptionError, names_of, planned_options, refuse_unknown
from disttrain.config.other_names import hint
from disttrain.config.refusals import OF_THE_BATCH, refuse
from disttrain.config.secret_variables import take_secrets
from disttrain.config.value_errors import describe, validated
from disttrain.errors import ConfigError, nearest
from disttrain.masking import mask_lines

SWEEP_SECTIONS = ("sweep", "targets")
"""Sections of a sweep file that are no part of a run's config."""


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number (YAML 1.1 requires a dot), `1e4` a whole one, and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- as in the base class
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":float", ":timestamp"))]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number = super().construct_yaml_float(node)
        return int(number) if re.fullmatch(r"[-+]?\d[\d_]*[eE]\+?\d\d?", node.value) else number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        for key, _ in node.value:
            if key.tag != self.DEFAULT_SCALAR_TAG:  # `1`, `no`, `!!binary aGVsbG8=`
                raise yaml.constructor.ConstructorError(None, None, "keys should be strings", key.start_mark)
        return mapping


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


@dataclass
class Draft:
    """Unchecked nested config data, with the origin of each dotted key (`file.yaml:12`, `--set`)."""

    data: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set the dotted `key`. Raises `ConfigError` where a part of the key is a value, not a section."""
        *sections, leaf = key.split(".")
        node = self.data
        for depth, name in enumerate(sections):
            child = node.get(name)
            if child is None:  # absent, or an empty section in YAML
                child = node[name] = {}
            if not isinstance(child, dict):
                raise ConfigError(f"{'.'.join(sections[: depth + 1])} is a value, not a section", at=origin)
            node = child
        node[leaf] = value
        self.origin[key] = origin

    def get(self, key: str) -> Any:
        """The value at a dotted key, or None."""
        return get_key(self.data, key)

    def at(self, key: str) -> str | None:
        """Origin of `key`, or of the innermost section around it."""
        while key and key not in self.origin:
            key = key.rpartition(".")[0]
        return self.origin.get(key)

    def copy(self) -> Draft:
        return Draft(copy.deepcopy(self.data), dict(self.origin))


def load(path: Path | str) -> Draft:
    """Read a YAML file into a draft. Raises `ConfigError` unless the file is a readable mapping."""
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read config {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read config {str(path)!r}: not a text file") from None
    try:
        root = yaml.compose(text, Loader=_Loader)
        draft = Draft()
        if root is not None:
            if not isinstance(root, yaml.MappingNode):
                raise ConfigError("a config is a mapping of sections", at=f"{path}:1")
            _record_lines(root, "", str(path), draft.origin)
            draft.data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"not valid YAML: {getattr(error, 'problem', error)}", at=f"{path}{line}") from None
    return draft


def _record_lines(node: yaml.MappingNode, prefix: str, path: str, origin: dict[str, str]) -> None:
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        place = f"{path}:{key_node.start_mark.line + 1}"
        if key in origin:
            raise ConfigError(f"{key} is given twice (first at {origin[key]})", at=place)
        origin[key] = place
        if isinstance(value_node, yaml.MappingNode):
            _record_lines(value_node, f"{key}.", path, origin)


def parse_value(text: str, at: str) -> Any:
    """Read one override value as YAML: `5`, `true`, `null`, `[a, b]`, `text`, and `{run_dir}/x` as text.

    Raises `ConfigError`.
    """
    if re.match(r"\{[\w.]+\}", text):
        return text
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise ConfigError(f"cannot read value {text!r}", at=at) from None


def flag_pairs(words: Sequence[str], known: Sequence[str]) -> list[tuple[str, str]]:
    """Config flags (`--a.b value`, `--a.b=value`) as (key, text); `known` lists the other flags.

    Raises `ConfigError` for an unknown flag or a missing value.
    """
    pairs = []
    pending = iter(words)
    for word in pending:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or "." not in flag:
            raise ConfigError(f"unknown argument {word!r}{nearest(flag, known)}")
        if not equals:
            value = next(pending, "")
            if not value:
                raise ConfigError(f"{flag} needs a value")
        pairs.append((flag.removeprefix("--"), value))
    return pairs


def known_keys() -> list[str]:
    """Every dotted key of the config tree, without the options of models and data sources."""
    return [key for key, _ in config_fields()]


def check(draft: Draft) -> Config:
    """The checked config, without values of secrets. `SWEEP_SECTIONS` are ignored, so that the trainer can
    read a sweep file.

    Raises `ConfigError`, a line for each unknown key, wrong type or impossible combination.
    """
    config = check_values(draft)
    if config.command:
        _check_command(config, draft)
        return config
    config = _with_options(config, draft)
    refuse(config, draft.at)
    return config


def check_values(draft: Draft) -> Config:
    """The config with its keys and types checked, but neither options of models and data nor combinations.

    Raises `ConfigError`.
    """
    data = {name: value for name, value in draft.data.items() if name not in SWEEP_SECTIONS}
    for name, value in data.items():
        if value is None and name != "command":  # an empty section in YAML
            data[name] = {}
    take_secrets(Draft(data, draft.origin))
    try:
        config = validated(Config, data)
    except ValidationError as error:
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        wrong = [each for each in error.errors() if each["type"] != "extra_forbidden"]
        keys = [".".join(map(str, each["loc"])) for each in unknown]
        messages = [(key, _unknown(key, draft.get(key))) for key in keys] + describe(wrong)
        raise _errors(((key, mask_lines(message)) for key, message in messages), draft) from None
    errors = []
    for key, package, name in [] if config.command else names_of(config):
        try:
            refuse_unknown(key, package, name)
        except ConfigError as error:
            errors.append((key, str(error)))
    if errors:
        raise _errors(errors, draft)
    return config


def check_section(name: str, values: dict[str, Any]) -> None:
    """Raise `ConfigError` unless `values` is a valid section `name` of a config."""
    check_values(Draft({name: values}))


def _errors(messages: Iterable[tuple[str, str]], draft: Draft) -> ConfigError:
    return ConfigError.of_all([ConfigError(message, at=draft.at(key)) for key, message in messages])


def _unknown(key: str, value: Any) -> str:
    """The message for an unknown key: its name here if others use it, else the nearest one."""
    sections, section = [*Config.model_fields, *SWEEP_SECTIONS], key.split(".")[0]
    allowed = [each for each in known_keys() if each.split(".")[0] == section] if "." in key else sections
    is_section = "." not in key and (value is None or isinstance(value, dict))
    close = hint(key) or (nearest(key, sections) if is_section else "") or nearest(key, known_keys())
    return f"unknown key '{key}'{close}; allowed: {', '.join(allowed)}"


def _with_options(config: Config, draft: Draft) -> Config:
    update: dict[str, Any] = {}
    errors = []
    for key in BUILT_SECTIONS:
        section = getattr(config, key)
        declared = {name: getattr(section, name) for name in type(section).model_fields}
        try:
            options = planned_options(key, section.kind, section.model_extra or {})
            update[key] = type(section)(**declared, **options)
        except OptionError as error:
            errors.append((f"{key}.{error.option}", str(error)))
    if errors:
        raise _errors(errors, draft)
    return config.model_copy(update=update)


_TRAINER_KEYS = (
    "stop_check_s",
    "setup_timeout_s",
    "step_timeout_s",
    "checkpoint_timeout_s",
    "evaluation_timeout_s",
    "collective_timeout_s",
)
"""Keys of `job` that only this project's trainer reads."""


def check_words(command: Sequence[str], at: str | None = None) -> None:
    """Raise `ConfigError` for a command that torchrun cannot start."""
    first, *rest = command
    if first == "-m" and not rest:
        raise ConfigError("command: -m needs a module", at=at)
    if first != "-m" and not first.endswith(".py"):
        message = f"command: {first!r} is neither a script (train.py) nor -m and a module"
        if first.rpartition("/")[2].startswith(("python", "torchrun")):
            message += "; leave out python and torchrun"
        raise ConfigError(message, at=at)


def _check_command(config: Config, draft: Draft) -> None:
    """Refuse a command that torchrun cannot start, and keys that only the trainer reads."""
    check_words(config.command, draft.at("command"))
    given = [name for name in draft.data if name in Config.model_fields and name not in OF_A_COMMAND]
    given += [f"job.{name}" for name in draft.data.get("job") or {} if name in _TRAINER_KEYS]
    if given:
        key = next((key for key in draft.origin if key.startswith(f"{given[0]}.")), given[0])
        message = f"{key} has no effect on a command: only this project's trainer reads it"
        raise ConfigError(message, at=draft.at(key))


def with_batch(
    config: Config, draft: Draft, base_ranks: int | None = None, scaling: Scaling = "weak"
) -> tuple[Config, BatchPlan | None]:
    """The config with both batch sizes filled in, and its batch plan; a `command` has none, and neither has a
    local batch size of `auto`, whose ranks find it.

    The sizes in `config` refer to `base_ranks` ranks (by default its own world size) and are scaled from
    there. Raises `ConfigError` when they do not divide.
    """
    local, global_ = config.train.local_batch_size, config.train.global_batch_size
    if config.command or (local == "auto" and global_ is None):  # the script has its own batch size
        return config, None
    readers = config.world_size // config.stages
    base_readers = max(1, (base_ranks or config.world_size) // config.stages)
    number = None if local == "auto" else local
    try:
        batch = scale_batch(
            number, global_, base_world=base_readers, world=readers, scaling=scaling,
            accumulation=config.train.accumulation,
        )  # fmt: skip
    except ConfigError as error:
        key = "train.global_batch_size" if global_ else "train.local_batch_size"
        raise ConfigError(str(error), at=draft.at(key)) from None
    found = {
        "local_batch_size": local if local == "auto" else batch.local,
        "global_batch_size": batch.global_,
        "accumulation": None,  # both sizes determine it
    }
    config = config.model_copy(update={"train": config.train.model_copy(update=found)})
    refuse(config, draft.at, OF_THE_BATCH)
    return config, None if local == "auto" else batch
