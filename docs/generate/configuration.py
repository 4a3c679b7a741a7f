"""Schemas of the files of a run, the reference of all config keys, and the options of built-in kinds.

The kinds are imported for it, with torch.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from disttrain.config import options
from disttrain.config.config_tree import Config, config_fields
from disttrain.config.sections.base import is_excluded_from_key, section_of
from docs.generate.files import DOCS, REFERENCE, ROOT, page, table
from docs.generate.records import FILES

_INTRODUCTION = """
Training and sweep files are YAML with the sections below. Every key has a default, except the length
(`train.steps` or `train.epochs`) and the batch size (`train.local_batch_size` or `train.global_batch_size`).
An unknown key is refused, with the nearest known one. [Values that exclude each other](refusals.md) are
refused at the submission. An option that no run reads, such as one of `parallel.ddp` under `fsdp`, is a
warning.

[Your code](../your-code.md) explains `command`, `model` and `data`; [strategies](../strategies.md)
`parallel`, `precision`, `memory` and `compile`; [requeue](../requeue.md) `job` and `checkpoint`; [the
report](../report.md) `telemetry`.

A key marked <sup>n</sup> changes how a run is carried out or observed, but not its results: it is not part of
the run key. A run with a `command` has only this key, `resources` and `job`.
"""
HEAD = ["key", "default; allowed", "meaning"]


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    known = builders()
    plain = {
        package: {kind: asdict(each) for kind, each in kinds.items()} for package, kinds in known.items()
    }
    return {
        **{DOCS / "schemas" / f"{name}.json": _schema(name) for name in FILES},
        REFERENCE / "configuration.md": configuration(known),
        ROOT / "disttrain" / "config" / "options.json": json.dumps(plain, indent=1) + "\n",
    }


def builders() -> dict[str, dict[str, options.Builder]]:
    """Options of the callable in each module of the packages of kinds."""
    known: dict[str, dict[str, options.Builder]] = {}
    for package in filter(None, options.PACKAGE_OF.values()):
        prefix = f"disttrain.{package.replace('/', '.')}"
        kinds = sorted(path.stem for path in (options.PACKAGE / package).glob("[!_]*.py"))
        modules = {kind: importlib.import_module(f"{prefix}.{kind}") for kind in kinds}
        defined = {kind: getattr(module, "build", None) for kind, module in modules.items()}
        known[package] = {kind: options.inspected(build) for kind, build in defined.items() if build}
    return known


def configuration(known: Mapping[str, Mapping[str, options.Builder]]) -> str:
    """The reference of all config keys, as Markdown; `known` are the `builders`."""
    parts = []
    for name, info in Config.model_fields.items():
        section = section_of(info)
        fields = config_fields(section, f"{name}.") if section else [(name, info)]
        meaning = cleandoc(section.__doc__ or "") if section else ""
        parts += [f"## {name}", meaning, table(HEAD, [field_row(key, field) for key, field in fields])]
        package = options.BUILT_SECTIONS.get(name, "")
        parts += [_options(name, kind, builder) for kind, builder in known.get(package, {}).items()]
    return page("Configuration", _INTRODUCTION, *filter(None, parts))


def _schema(name: str) -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **FILES[name].model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def field_row(key: str, field: FieldInfo) -> list[str]:
    """Row of a field in a table of keys."""
    mark = "<sup>n</sup>" if is_excluded_from_key(field) else ""
    default = () if field.is_required() else (field.get_default(call_default_factory=True),)
    return _row(f"`{key}`{mark}", field.rebuild_annotation(), default, field.description or "")


def _row(key: str, annotation: Any, default: Sequence[Any], meaning: str) -> list[str]:
    """`default` is empty for a required key. It shows the type, so that only what else is allowed is left."""
    kind = type_name(annotation)
    if not default:
        return [key, f"required; {kind}", meaning]
    kind = (
        kind.removesuffix(" or null")
        if default[0] is None
        else re.sub(r"^(bool|int|float|text|mapping)( or)? ?", "", kind)
    )
    return [key, f"`{json.dumps(default[0])}`" + (f"; {kind}" if kind else ""), meaning]


def _options(section: str, kind: str, builder: options.Builder) -> str:
    meaning = _parameters(builder.doc)
    rows = []
    for name, annotation in builder.types.items():
        default = [builder.defaults[name]] if name in builder.defaults else []
        text = meaning.get(name, "")
        rows.append(
            _row(f"`{section}.{name}`", options.type_of(annotation), default, text[:1].upper() + text[1:])
        )
    if builder.sizes:
        names = ", ".join(f"`{name}`" for name in builder.sizes)
        values = ", ".join(f"`{section}.{name}`" for name in next(iter(builder.sizes.values())))
        rows.insert(0, [f"`{section}.size`", f"`null`; {names}", f"A name that sets {values}."])
    summary = " ".join(builder.doc.split("\n\n")[0].split())
    return f"### {section}.kind: {kind}\n\n{summary}\n\n{table(HEAD, rows)}"


def _parameters(doc: str) -> dict[str, str]:
    """Descriptions by parameter name, from the `Parameters` section of a docstring (`name, other :
    description`)."""
    _, _, section = doc.partition("Parameters\n----------\n")
    found: dict[str, str] = {}
    for entry in re.finditer(r"^([\w, ]+) : (.*(?:\n[ \t]+\S.*)*)", section.split("\n\n")[0], re.MULTILINE):
        for name in entry[1].split(", "):
            found[name] = " ".join(entry[2].split())
    return found


def type_name(annotation: Any) -> str:
    """A type annotation as text for a reader of the reference."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [text for item in arguments[1:] if (text := _bound(item))]
        return " ".join([type_name(arguments[0]), *bounds])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(item) for item in arguments)
    if origin in (list, tuple):
        return "list of " + type_name(arguments[0])
    if annotation is NoneType:
        return "null"
    plain: str = getattr(annotation, "__name__", str(annotation))
    return {"Any": "any", "str": "text", "dict": "mapping"}.get(plain, plain)


def _bound(item: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return ", ".join(
        f"{sign} {value}" for name, sign in signs.items() if (value := getattr(item, name, None)) is not None
    )
