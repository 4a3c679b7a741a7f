"""YAML files, flags and overrides become a checked `Config`; an error is one line with file and line.

A `Draft` is a config before the check: nested plain data, and the origin of each dotted key. Overrides are
set in the draft, then `check` returns a `Config`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from disttrain.config.batch_plan import BatchPlan, Scaling, scale_batch
from disttrain.config.config_tree import OF_A_COMMAND, Config, config_fields
from disttrain.config.dotted_keys import flat_values, get_key
from disttrain.config.options import BUILT_SECTIONS, names_of, planned_options, unknown_name
from disttrain.config.refusals import OF_THE_BATCH, refused
from disttrain.config.sections.job import OF_A_FOLLOW_UP
from disttrain.config.validation import describe, hint, validated
from disttrain.errors import ConfigError, nearest
from disttrain.masking import is_secret, mask_lines

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
        for depth, name in enumerate(sections, 1):
            if node.get(name) is None:  # absent, or an empty section in YAML
                node[name] = {}
            node = node[name]
            if not isinstance(node, dict):
                raise ConfigError(f"{'.'.join(sections[:depth])} is a value, not a section", at=origin)
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

    def error(self, *messages: str) -> ConfigError:
        """An error with a line for each message, at the origin of the key that the message begins with."""
        keys = [re.split(r"[\s=:']", message.removeprefix("unknown key '"))[0] for message in messages]
        return ConfigError.of_all(
            [ConfigError(message, at=self.at(key)) for key, message in zip(keys, messages, strict=True)]
        )

    def copy(self) -> Draft:
        return Draft(copy.deepcopy(self.data), dict(self.origin))


def config_file(path: Path | str) -> Path:
    """The file of a config; for `sweeps/NAME.yaml` that does not exist, the one that was installed."""
    path = Path(path)
    shipped = Path(__file__).parents[2] / "sweeps" / path.name
    return shipped if path.parent.name == "sweeps" and not path.exists() and shipped.is_file() else path


def load(path: Path | str) -> Draft:
    """Read a YAML file (`config_file`) into a draft. Raises `ConfigError` unless it is a readable mapping."""
    path = config_file(path)
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
    config, errors = _valid_part(draft)
    if errors and draft.get("command"):
        raise draft.error(*errors)
    for key, names in () if errors else (("on_checkpoint", OF_A_FOLLOW_UP), ("on_done", OF_A_FOLLOW_UP[:3])):
        _check_follow_up(f"job.{key}", getattr(config.job, key), names, config.job.launcher, draft)
    if config.command:
        check_words(config.command, config.job.launcher, draft.at("command"))
        _refuse_keys_of_trainer(draft)
        return config
    update = {}
    for name in BUILT_SECTIONS:
        section = getattr(config, name)
        declared = {key: getattr(section, key) for key in type(section).model_fields}
        options: dict[str, Any] = {}
        try:
            options = planned_options(name, section.kind, section.model_extra or {})
        except ConfigError as error:
            errors += str(error).splitlines()
        update[name] = type(section)(**declared, **options)
    config = config.model_copy(update=update)
    # A section that an error names is not complete: a misspelt key may belong to it.
    named = {word for error in errors for word in re.findall(r"\w+", error.partition("; allowed")[0])}
    for message in refused(config):
        if named.isdisjoint(re.findall(r"(\w+)\.[\w.]+=", message.partition(": ")[0])):
            errors.append(message)
    if errors:
        raise draft.error(*errors)
    return config


def check_values(draft: Draft) -> Config:
    """The config with its keys and types checked, but neither options of models and data nor combinations.

    Raises `ConfigError`.
    """
    config, errors = _valid_part(draft)
    if errors:
        raise draft.error(*errors)
    return config


def _valid_part(draft: Draft) -> tuple[Config, list[str]]:
    """The config without sections that have an unknown key or a wrong value, and a message for each of these.

    Raises `ConfigError` where no config remains.
    """
    data = {name: value for name, value in draft.data.items() if name not in SWEEP_SECTIONS}
    for name, value in data.items():
        if value is None and name != "command":  # an empty section in YAML
            data[name] = {}
    take_secrets(Draft(data, draft.origin))
    errors: list[str] = []
    try:
        config = validated(Config, data)
    except ValidationError as error:
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        wrong = [each for each in error.errors() if each["type"] != "extra_forbidden"]
        messages = [_unknown(".".join(map(str, each["loc"])), each["input"]) for each in unknown]
        messages += [message for _, message in describe(wrong)]
        errors += map(mask_lines, messages)
        try:
            wrong_sections = {each["loc"][0] for each in error.errors() if each["loc"]}
            config = validated(Config, {name: data[name] for name in data.keys() - wrong_sections})
        except ValidationError:
            raise draft.error(*errors) from None
    if not config.command:
        errors += filter(None, (unknown_name(*name) for name in names_of(config)))
    return config, errors


def check_section(name: str, values: dict[str, Any]) -> None:
    """Raise `ConfigError` unless `values` is a valid section `name` of a config."""
    check_values(Draft({name: values}))


def _unknown(key: str, value: Any) -> str:
    """The message for an unknown key: its name here if others use it, else the nearest one."""
    known, sections = known_keys(), [*Config.model_fields, *SWEEP_SECTIONS]
    section, dot, _ = key.partition(".")
    is_section = not dot and (value is None or isinstance(value, dict))
    close = hint(key) or (nearest(key, sections) if is_section else "") or nearest(key, known)
    allowed = [each for each in known if each.startswith(f"{section}.")] if dot else sections
    return f"unknown key '{key}'{close}; allowed: {', '.join(allowed)}"


_TRAINER_KEYS = (
    "job.on_checkpoint",
    "job.stop_check_s",
    "job.setup_timeout_s",
    "job.step_timeout_s",
    "job.checkpoint_timeout_s",
    "job.evaluation_timeout_s",
    "job.collective_timeout_s",
)
"""Keys of `job` that only this project's trainer reads."""


def check_words(command: Sequence[str], launcher: str = "torchrun", at: str | None = None) -> None:
    """Raise `ConfigError` for a command that the launcher cannot start."""
    first, *rest = command
    if first == "-m" and not rest:
        raise ConfigError("command: -m needs a module", at=at)
    is_executable = launcher != "torchrun" and not first.startswith("-")
    if first != "-m" and not first.endswith(".py") and not is_executable:
        message = f"command: {first!r} is neither a script (train.py) nor -m and a module; "
        if first.rpartition("/")[2].startswith(("python", "torchrun", "srun")):
            message += "leave out srun, python and torchrun"
        else:
            message += "job.launcher=node or rank starts any executable"
        raise ConfigError(message, at=at)


def _check_follow_up(
    key: str, words: Sequence[str], names: Sequence[str], launcher: str, draft: Draft
) -> None:
    """Raise `ConfigError` for a command that the launcher cannot start, and for an unknown placeholder."""
    if words:
        check_words(words, launcher, ": ".join(filter(None, [draft.at(key), key])))
    for name in re.findall(r"\{(\w+)\}", " ".join(words)):
        if name not in names:
            known = ", ".join(f"{{{each}}}" for each in names)
            raise draft.error(f"{key}: {{{name}}} is none of {known}{nearest(name, names)}")


def _refuse_keys_of_trainer(draft: Draft) -> None:
    """Raise `ConfigError` for a key that only the trainer reads."""
    sections = {*Config.model_fields} - {*OF_A_COMMAND}
    for key in flat_values(draft.data):
        if key in _TRAINER_KEYS or key.split(".")[0] in sections:
            raise draft.error(f"{key} has no effect on a command: only this project's trainer reads it")


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
        raise draft.error(str(error)) from None
    found = {
        "local_batch_size": local if local == "auto" else batch.local,
        "global_batch_size": batch.global_,
        "accumulation": None,  # both sizes determine it
    }
    config = config.with_values("train", **found)
    if messages := refused(config, OF_THE_BATCH):
        raise draft.error(*messages)
    return config, None if local == "auto" else batch


_ENV, _NAMES = "job.env", "job.secrets"


def take_secrets(
    draft: Draft,
    products: Sequence[Mapping[str, Iterable[Any]]] = (),
    origins: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Remove the secrets from `job.env` of a draft, add their names to `job.secrets`; the values by name.

    A config, its run key, axes and records thus hold names of secrets alone.
    `products` are the values of axes by key, `origins` the origins of the axes. Raises `ConfigError` for a
    value that is no text, and for a secret among the axes, whose values are part of names and records.
    """
    env, listed = draft.get(_ENV) or {}, draft.get(_NAMES) or []
    if not isinstance(env, dict) or not isinstance(listed, list | tuple):
        return {}  # the check of the config refuses it
    axes = ((key, value) for product in products for key, values in product.items() for value in values)
    names = {name: key for key, value in axes for name in flat_values({key: value})}
    for name, key in names.items():
        if name != _NAMES and is_about_secrets(name, listed):
            message = f"{name} is a secret, which cannot be an axis: give it one value, alone"
            raise ConfigError(message, at=origins[key])
    found = {name: value for name, value in env.items() if is_secret(str(name)) or name in listed}
    for name, value in found.items():
        if not isinstance(value, str):
            raise draft.error(f"{_ENV}.{name} is a secret: a text is needed; write a number in quotes")
    if found:
        others = {name: value for name, value in env.items() if name not in found}
        secrets = [*dict.fromkeys([*listed, *sorted(found)])]
        draft.data["job"] = {**draft.data["job"], "env": others, "secrets": secrets}
    return found


def is_about_secrets(key: str, listed: Collection[str]) -> bool:
    """Whether a dotted key is a secret of `job.env`, or `job.secrets`; `listed` are the names in it."""
    section, _, name = key.rpartition(".")
    return key == _NAMES or (section == _ENV and (is_secret(name) or name in listed))
