"""Options of models and data sources: the keyword arguments of `build`, read from its source text.

The login node checks `model.layers: 4` without importing torch, and a new model needs one new file. Names,
types and defaults therefore come from the syntax tree of the file that defines `build`. Options that the
source text does not show (a module that is not on the path here) are checked in the job.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from disttrain.config.numbers_only import NumbersOnly
from disttrain.config.signatures import Signature, find, module_file, parsed, signature
from disttrain.config.value_errors import describe
from disttrain.errors import ConfigError, nearest

BUILT_SECTIONS = {"model": "models", "data": "data"}
"""Config section with options of a builder, to the package of its builders."""

FILE_SUFFIXES = (".yaml", ".yml", ".json")
_DYNAMIC = ("globals", "setattr", "exec", "sys.modules")
"""Expressions by which a module may get names that its source text does not show."""
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_LOOKS_LIKE = 0.85
"""Similarity (difflib's ratio) at which an option of a builder with `**kwargs` counts as a misspelt one."""


@dataclass(frozen=True)
class Builder:
    """The signature of a callable whose keyword arguments are options of the config."""

    signature: Signature
    file_options: tuple[str, ...] = ()
    """Options that may name a YAML or JSON file. Planning replaces the name by the file's content, so that
    the content is part of the run key and of `run.json`."""
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of several options by a name, given as the option `size` (`SIZES` of the module). Planning
    replaces the name by the values, so that a size and its values give the same run key."""

    @property
    def options(self) -> dict[str, tuple[Any, Any]]:
        return self.signature.options

    @property
    def open_ended(self) -> bool:
        return self.signature.open_ended

    @property
    def doc(self) -> str:
        return self.signature.doc

    @functools.cached_property
    def model(self) -> type[BaseModel]:
        """A pydantic model of the options, made once: a sweep checks thousands of configs against it."""
        return create_model("Options", __base__=_Options, **self.options)  # type: ignore[call-overload]


class _Options(NumbersOnly):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


def builtin_kinds(section: str) -> list[str]:
    """Names of the modules in `disttrain.<section>` that define `build`."""
    return _modules_with(_PACKAGE_ROOT / section, "build")


def check_plug_in(name: str, key: str, package: str, attribute: str = "build") -> None:
    """Raise `ConfigError` for a name that is neither a module of `disttrain.<package>` with this attribute
    nor of the form `package.module:name`."""
    if ":" in name:
        source_of(name, key)
        return
    folder = _PACKAGE_ROOT.joinpath(*package.split("."))
    if not _defines(folder, name, attribute):
        names = _modules_with(folder, attribute)
        raise ConfigError(
            f"{key}: {name!r} is unknown; allowed: {', '.join(names)} or package.module:name"
            f"{nearest(name, names)}"
        )


def builder_of(section: str, kind: str) -> Builder | None:
    """The builder that `kind` names; None if its source is not found without an import.

    Raises `ConfigError` for a kind that is neither built in nor of the form `package.module:callable`.
    """
    key = {"models": "model.kind"}.get(section, f"{section}.kind")
    if ":" not in kind:
        if not _defines(_PACKAGE_ROOT / section, kind, "build"):
            kinds = builtin_kinds(section)
            raise ConfigError(
                f"{key}={kind!r} is unknown; allowed: {', '.join(kinds)} or package.module:callable"
                f"{nearest(kind, kinds)}"
            )
        return _read(_PACKAGE_ROOT / section / f"{kind}.py", "build")
    path = source_of(kind, key)
    return None if path is None else _read(path, kind.partition(":")[2])


def source_of(plug_in: str, key: str) -> Path | None:
    """The file of `package.module:name`; None if the module is not on the path here.

    Raises `ConfigError`, for the config key `key`, for another form and if the file defines no such name.
    """
    module, _, name = plug_in.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise ConfigError(f"{key}: {plug_in!r} is not of the form package.module:name")
    path = module_file(module)
    if path is not None:
        names = _assigned_names(parsed(path))
        if name not in names and not names & {"*", "__getattr__"}:
            hint = nearest(name, sorted(names))
            raise ConfigError(f"{key}: {plug_in!r}: {path} defines no {name!r}{hint}")
    return path


def check_options(section: str, key: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given` converted to the builder's types, with defaults filled in.

    `key` is the name of the config section in messages. Raises `OptionError` for an unknown option or a wrong
    type.
    """
    builder = builder_of(section, kind)
    if builder is None:
        return given
    given = _with_size(builder, key, kind, given)
    for name in given:
        _check_name(builder.signature, f"{key}.kind={kind}", key, name)
    try:
        checked: dict[str, Any] = builder.model(**given).model_dump()
    except ValidationError as error:
        errors = error.errors()
        name = str(errors[0]["loc"][0])
        if errors[0]["type"] == "missing" and len(errors[0]["loc"]) == 1:
            raise OptionError(name, f"{key}.{name} is needed by {key}.kind={kind}") from None
        raise OptionError(name, f"{key}.{describe(errors)[1]}") from None
    for name in builder.signature.computed - set(given):
        del checked[name]  # the callable fills it in
    for name in builder.file_options:
        if isinstance(checked[name], str) and checked[name].endswith(FILE_SUFFIXES):
            checked[name] = _content(f"{key}.{name}", name, Path(checked[name]))
    return checked


def _with_size(builder: Builder, key: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given` with the values of its `size` in place of the name. Raises `OptionError`."""
    if not builder.sizes or given.get("size") is None:
        return {name: value for name, value in given.items() if name != "size" or not builder.sizes}
    size, rest = str(given["size"]), {name: value for name, value in given.items() if name != "size"}
    if size not in builder.sizes:
        allowed = list(builder.sizes)
        raise OptionError(
            "size", f"{key}.size={size!r}: allowed for {kind}: {', '.join(allowed)}{nearest(size, allowed)}"
        )
    values = builder.sizes[size]
    for name in values:
        if name in rest:
            raise OptionError(
                name, f"{key}.size={size} sets {key}.{name}={values[name]}: give only one of them"
            )
    return {**rest, **values}


def _check_name(builder: Signature, at: str, key: str, name: str) -> None:
    """Raise `OptionError` for an option that the builder does not accept.

    A builder may pass `**kwargs` on to code that ignores unknown names. So a name close to a known one is
    refused, too.
    """
    if name in builder.names:
        return
    allowed = sorted(builder.names)
    if not builder.open_ended:
        raise OptionError(
            name,
            f"{key}.{name} is not an option of {at}; allowed: {', '.join(allowed) or 'none'}"
            f"{nearest(name, allowed)}",
        )
    if close := difflib.get_close_matches(name, allowed, n=1, cutoff=_LOOKS_LIKE):
        raise OptionError(
            name,
            f"{key}.{name} is not named by {at}; did you mean '{close[0]}'? Its **kwargs could hide a "
            f"misspelt option; if {name} is right, make it an argument",
        )


def unchecked_options(section: str, key: str, kind: str, given: Iterable[str]) -> str | None:
    """A sentence on the options of `given` that only the job can check; None if all are checked here."""
    builder = builder_of(section, kind)
    if builder is None:
        names, reason = list(given), "its source is not found here"
    else:
        names = [name for name in given if name not in builder.signature.names]
        reason = "its **kwargs take any option"
    if not names:
        return None
    options = ", ".join(f"{key}.{name}" for name in names)
    return f"{key}.kind={kind}: {reason}, so {options} can only be checked in the job"


def _content(key: str, option: str, path: Path) -> Any:
    try:
        return _content_version(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise OptionError(option, f"{key}={str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError):
        raise OptionError(option, f"{key}={str(path)!r} is not valid {path.suffix[1:].upper()}") from None


@functools.cache
def _content_version(path: Path, _modified: int) -> Any:
    text = path.read_text(encoding="utf-8")
    # not the YAML reader: YAML 1.1 reads `1e-05` as text
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


class OptionError(ConfigError):
    """An invalid option; `option` is its name, for which the caller adds file and line."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def _read(path: Path, name: str) -> Builder | None:
    return _read_version(path, name, path.stat().st_mtime_ns)


@functools.cache
def _read_version(path: Path, name: str, _modified: int) -> Builder | None:
    found = signature(path, name)
    if found is None:
        return None
    module = parsed(path)
    sizes = _literal(module, "SIZES") or {}
    named = isinstance(sizes, dict) and all(isinstance(values, dict) for values in sizes.values())
    return Builder(found, tuple(_literal(module, "FILE_OPTIONS") or ()), sizes if named else {})


def _literal(module: ast.Module, name: str) -> Any:
    """The value of `name = ...` in the module; None unless it is a literal."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            with contextlib.suppress(ValueError):
                return ast.literal_eval(node.value)
    return None


def _defines(folder: Path, module: str, name: str) -> bool:
    """Whether `folder` has a module of this name that defines `name`."""
    path = folder / f"{module}.py"
    return module.isidentifier() and path.is_file() and find(parsed(path), name) is not None


def _modules_with(folder: Path, name: str) -> list[str]:
    """Names of the modules in `folder` that define `name`."""
    return sorted(path.stem for path in folder.glob("*.py") if find(parsed(path), name) is not None)


def _assigned_names(tree: ast.Module) -> set[str]:
    """All names that the source text defines, assigns or imports, in any scope.

    `*` marks names that the text does not show: a star import, `globals()`, a replaced `sys.modules` entry.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in _DYNAMIC:
            names.add("*")
    return names
