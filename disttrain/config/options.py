"""Options of models and data sources: the keyword arguments of their `build`.

Those of built-in kinds are in `options.json`, which `make schemas` writes, so that the login node checks
them without torch. Those of other kinds are read from the imported callable: in the process
that checks plug-ins before a submission, and in the job.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.schedules import SCHEDULES
from disttrain.config.validation import describe, hint, validated
from disttrain.errors import ConfigError, nearest

BUILT_SECTIONS = {"model": "models", "data": "data"}
"""Config section with options of a builder, to the package of its builders."""
PACKAGE_OF = {
    "model.kind": "models",
    "data.kind": "data",
    "optim.schedule": "schedules",
    "model.transforms": "transforms",
    "parallel.strategy": "parallel",
    "parallel.gradient_communication.scheme": "parallel/schemes",
    "telemetry.sinks": "telemetry/sinks",
    "telemetry.fields": "",
}
"""Package of the modules that a key names, or whose names it lists; empty: plug-ins alone."""
PACKAGE = Path(__file__).resolve().parents[1]
Share = Annotated[float, Ge(0), Le(0.5)]
"""Share of the samples that are held out."""
_TYPES = {"Any": Any, "Literal": Literal, "Share": Share} | {
    name: getattr(pydantic, name)
    for name in ("PositiveInt", "NonNegativeInt", "PositiveFloat", "NonNegativeFloat")
}
"""Names that the annotation of an option may consist of, beside built-in ones."""
_LOOKS_LIKE = 0.85
"""Similarity (difflib's ratio) at which an option of a builder with `**kwargs` counts as a misspelt one."""


@dataclass(frozen=True)
class Builder:
    """A callable whose keyword arguments are options of the config."""

    types: Mapping[str, str]
    """Annotation of each option, as text."""
    defaults: Mapping[str, Any]
    """Of the options that are not required."""
    doc: str = ""
    open_ended: bool = False
    """Whether the callable has `**kwargs`."""
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`SIZES` of the module: values of several options by a name, given as the option `size`. Planning
    replaces the name by the values, so that a size and its values give the same run key."""
    file_options: tuple[str, ...] = ()
    """`FILE_OPTIONS` of the module: options that may name a YAML or JSON file. Planning replaces the name by
    the file's content, so that the content is part of the run key and of `run.json`."""
    takes: tuple[str, ...] = ()
    """`TAKES` of the module of a model: the `samples` that it takes; empty: any."""
    samples: str | None = None
    """`SAMPLES` of the module of a data source: tokens, images or numbers; None where unknown."""

    @functools.cached_property
    def model(self) -> type[BaseModel]:
        """A pydantic model of the options, made once: a sweep checks thousands of configs against it."""
        config = ConfigDict(extra="allow", protected_namespaces=())
        fields: Any = {
            name: (type_of(text), self.defaults.get(name, ...)) for name, text in self.types.items()
        }
        return create_model("Options", __config__=config, **fields)


def type_of(text: str) -> Any:
    """The type of an annotation; any for types of the user's own, which the call checks."""
    try:
        type_ = eval(text, _TYPES)
        TypeAdapter(type_)
        return type_
    except Exception:
        return Any


def inspected(build: Callable[..., Any]) -> Builder:
    """The options of an imported callable."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(build).parameters.values()
    named = [each for each in parameters if each.kind not in variable and each.name != "source"]
    module = vars(sys.modules.get(build.__module__, object))
    return Builder(
        types={each.name: _annotation(each.annotation) for each in named},
        defaults={each.name: each.default for each in named if each.default is not each.empty},
        doc=inspect.getdoc(build) or "",
        open_ended=any(each.kind is each.VAR_KEYWORD for each in parameters),
        sizes=module.get("SIZES", {}),
        file_options=module.get("FILE_OPTIONS", ()),
        takes=module.get("TAKES", ()),
        samples=module.get("SAMPLES"),
    )


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


@functools.cache
def built_in(package: str) -> Mapping[str, Builder]:
    """The built-in kinds of a package, such as `models`, by name and in its order."""
    if package == "schedules":
        return {name: Builder({}, {}) for name in sorted(SCHEDULES)}
    kinds = json.loads(Path(__file__).with_name("options.json").read_text())[package]
    return {kind: Builder(**fields) for kind, fields in kinds.items()}


def unknown_name(key: str, package: str, kind: str) -> str | None:
    """The message on a kind that is neither a file of the package nor `package.module:callable`.

    Without a `package` it has to be the latter.
    """
    if ":" in kind or not package:
        module, _, name = kind.partition(":")
        if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            return f"{key}: {kind!r} is not of the form package.module:name"
    elif kind not in (kinds := built_in(package)) and not _is_file_with_build(package, kind):
        allowed = f"{', '.join(kinds)} or package.module:callable"
        return f"{key}={kind!r} is unknown; allowed: {allowed}{nearest(kind, kinds)}"
    return None


def _is_file_with_build(package: str, kind: str) -> bool:
    file = PACKAGE / package / f"{kind}.py"
    return kind.isidentifier() and file.is_file() and bool(re.search(r"^def build\b", file.read_text(), re.M))


def names_of(config: Config) -> list[tuple[str, str, str]]:
    """Key, package and value of each name in a config that is a module of the package, or a plug-in."""
    plain = config.as_dict()
    values = [(key, package, get_key(plain, key)) for key, package in PACKAGE_OF.items()]
    return [
        (key, package, name)
        for key, package, value in values
        for name in ([value] if isinstance(value, str) else value)
        if (key, name) != ("parallel.strategy", "auto")
    ]


def plug_ins(config: Config) -> list[tuple[str, str, str]]:
    """Those of the names that are no built-in kinds."""
    return [each for each in names_of(config) if ":" in each[2] or each[2] not in built_in(each[1])]


def planned_options(section: str, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config: those of a built-in kind checked, with defaults filled in, others unchanged.

    Raises `ConfigError`.
    """
    builder = built_in(BUILT_SECTIONS[section]).get(kind)
    return check_options(builder, section, kind, given, with_defaults=True) if builder else dict(given)


def check_options(
    builder: Builder,
    section: str,
    kind: str,
    given: Mapping[str, Any],
    chooser: str | None = None,
    *,
    with_defaults: bool = False,
) -> dict[str, Any]:
    """`given` converted to the builder's types, with the values of a size in place of its name.

    `kind` is the value of the key `chooser`, by default that of the section's kind.

    Raises `ConfigError`, with a line for each unknown option or wrong type that begins with its key.
    """
    given = {**(builder.defaults if with_defaults else {}), **_with_size(builder, section, kind, given)}
    chosen = f"{chooser or f'{section}.kind'}={kind}"
    errors = [error for name in given if (error := _wrong_name(builder, section, chosen, name))]
    try:
        checked = validated(builder.model, given).model_dump(exclude_unset=True)
    except ValidationError as error:
        missing = [each for each in error.errors() if each["type"] == "missing" and len(each["loc"]) == 1]
        if not errors:  # else its name may be misspelt
            errors = [f"{section}.{each['loc'][0]} is needed by {chosen}" for each in missing]
        wrong = [each for each in error.errors() if each not in missing]
        errors += [f"{section}.{message}" for _, message in describe(wrong)]
    if errors:
        raise ConfigError.of_all(errors)
    for name in builder.file_options:
        value = checked.get(name)
        if isinstance(value, str) and (path := Path(value)).suffix in (".yaml", ".yml", ".json"):
            modified = path.stat().st_mtime_ns if os.path.exists(path) else 0
            checked[name] = _content(f"{section}.{name}", path, modified)
    return checked


def _with_size(builder: Builder, section: str, kind: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given` with the values of its `size` in place of the name. Raises `ConfigError`."""
    if not builder.sizes or "size" not in given:
        return given
    rest = dict(given)
    if (size := rest.pop("size")) is None:
        return rest
    if (values := builder.sizes.get(str(size))) is None:
        allowed = f"{', '.join(builder.sizes)}{nearest(str(size), builder.sizes)}"
        raise ConfigError(f"{section}.size={str(size)!r}: allowed for {kind}: {allowed}")
    for name, value in values.items():
        if name in rest:
            raise ConfigError(f"{section}.size={size} sets {section}.{name}={value}: give only one of them")
    return {**rest, **values}


def _wrong_name(builder: Builder, section: str, chosen: str, name: str) -> str | None:
    """The message on an option that the builder does not accept; None for one that it accepts.

    A builder may pass `**kwargs` on to code that ignores unknown names. So a name close to a known one is
    refused, too.
    """
    if name in builder.types:
        return None
    allowed = sorted(builder.types)
    if not builder.open_ended:
        close, names = hint(name) or nearest(name, allowed), ", ".join(allowed) or "none"
        return f"{section}.{name} is not an option of {chosen}{close}; allowed: {names}"
    if meant := difflib.get_close_matches(name, allowed, n=1, cutoff=_LOOKS_LIKE):
        return (
            f"{section}.{name} is not named by {chosen}; did you mean '{meant[0]}'? Its "
            f"**kwargs could hide a misspelt option; if {name} is right, make it an argument"
        )
    return None


@functools.cache
def _content(key: str, path: Path, _modified: int) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        # not the YAML reader: YAML 1.1 reads `1e-05` as text
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{key}={str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError):
        raise ConfigError(f"{key}={str(path)!r} is not valid {path.suffix[1:].upper()}") from None
