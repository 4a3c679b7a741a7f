"""The schema of what `--json` prints, and the reference of its keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter

from docs.generate.files import DOCS, REFERENCE, by_owners, page, table
from jobs.cli.arguments import build_parser, parsers
from jobs.status.run_state import RunFields, StateName

_INTRODUCTION = """
With `--json`, a command prints one JSON document to stdout when it ends, and nothing else. Warnings, errors
and progress go to stderr as text. The exit code is the same.

```json
{"schema": 1, "verb": "status", "runs": [{"sweep": "default", "run": "n1", "...": "..."}], "error": null}
```

- `runs` are the runs that the command shows or changes, in the state after the command.
- `error` is null if and only if the exit code is 0, else `{"message": "...", "exit_code": 2}`.
- `schema` rises when a key is renamed or removed, not when one is added. The document has a [JSON
  schema](../schemas/command-output.json).
- `logs --json` prints a stream in JSON Lines: `{"log": "rank-00000", "line": "..."}` for each line, then the
  document.
- `cluster shell`, `tensorboard`, `open` and `completion` have no `--json`.
"""


@dataclass(frozen=True, kw_only=True)
class _Named:
    __pydantic_config__ = RunFields.__pydantic_config__
    sweep: str
    """Name of the sweep."""
    run: str
    """Name of the run within its sweep."""
    path: str
    """The run directory."""
    state: StateName | Literal["stopped", "cancelled"]
    """State of the run."""
    tags: list[str]
    """Tags of the run and of its sweep, in alphabetical order."""


@dataclass(frozen=True, kw_only=True)
class RunItem(RunFields, _Named):
    """A run. Unknown values are null."""


@dataclass
class ErrorItem:
    """Why the exit code is not 0."""

    __pydantic_config__ = RunFields.__pydantic_config__
    message: str
    """The lines on stderr, without `error: `."""
    exit_code: int
    """Exit code of the command."""


@dataclass
class Document:
    """Output of `disttrain VERB --json`. Further keys depend on the verb."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}

    schema: Literal[1]
    """Version of this schema."""
    verb: str | None
    """For example `status` or `cluster up`; null if the command line has no valid verb."""
    runs: list[RunItem]
    """The runs that the command shows or changes, in the state after the command."""
    warnings: list[str]
    """The warnings on stderr."""
    error: ErrorItem | None
    """Null if and only if the exit code is 0."""


def verb_keys() -> dict[str, dict[str, str]]:
    """Keys that only some verbs have, with their meaning, by verb."""
    keys = ((verb, parser.get_default("json_keys")) for verb, parser in parsers(build_parser()))
    return {verb: of_verb for verb, of_verb in keys if of_verb is not None}


def schema() -> dict[str, Any]:
    """The JSON schema of a document, which admits for each verb the keys of that verb."""
    made = TypeAdapter(Document).json_schema()
    parts = [TypeAdapter(part).json_schema()["properties"] for part in (_Named, RunFields)]  # with docstrings
    keys: dict[str, dict[str, Any]] = parts[0] | parts[1]
    for about in keys.values():
        about.pop("default", None)
    made["$defs"]["RunItem"] |= {"properties": keys, "required": [*keys]}
    made["allOf"] = [
        _admit({"const": verb}, [*made["required"], *keys]) for verb, keys in verb_keys().items()
    ]
    made["allOf"].append(_admit({"not": {"enum": [*verb_keys()]}}, made["required"]))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _admit(verb: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """A rule of JSON Schema: a document of such a verb has only these keys."""
    return {"if": {"properties": {"verb": verb}}, "then": {"propertyNames": {"enum": keys}}}


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    made = schema()
    keys = made["$defs"]["RunItem"]["properties"]
    runs = [[f"`{key}`", about["description"]] for key, about in keys.items()]
    groups = by_owners({verb: list(meanings.items()) for verb, meanings in verb_keys().items()})
    rows = [
        [", ".join(verbs), "<br>".join(f"`{key}`: {meaning}" for key, meaning in meanings)]
        for verbs, meanings in groups.items()
    ]
    text = page(
        "Output with --json",
        _INTRODUCTION,
        "## Keys of a run",
        table(["key", "meaning"], runs),
        "## Keys of single verbs",
        table(["verb", "keys"], rows),
    )
    schema_text = json.dumps(made, indent=2) + "\n"
    return {DOCS / "schemas" / "command-output.json": schema_text, REFERENCE / "json.md": text}
