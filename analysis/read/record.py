"""Read a record of a run directory, or the reason for which it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from analysis.read.lines import read_struct
from disttrain.records.base import SCHEMA_VERSION, Record

R = TypeVar("R", bound=Record)


def read_record(path: Path, model: type[R]) -> tuple[R | None, str]:
    """A record, or None with the problem."""
    content, problem = read_content(path)
    return (None, problem) if content is None else validated(path.name, content, model)


def read_content(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The object in a file, or None with the problem.

    A higher schema version may give a field another meaning, so such a record is not used.
    """
    problems: list[str] = []
    content = read_struct(path, dict[str, Any], problems)
    if content is None:
        missing = f"{path.name} is missing"
        return None, problems[0].removeprefix(f"{path.parent}/") if problems else missing
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return None, (
            f"{path.name} has schema version {version}, and this version of disttrain reads at most "
            f"{SCHEMA_VERSION}; write the report with the newer version"
        )
    return content, ""


def validated(name: str, content: dict[str, Any], model: type[R]) -> tuple[R | None, str]:
    """The record, or None with the problem. Fields of newer versions are left out. No type stands for another
    one: neither `true` for 1, nor "1"."""
    try:
        msgspec.msgpack.encode(content)  # no whole number is beyond 64 bits
        return model.model_validate_json(msgspec.json.encode(content), strict=True, extra="ignore"), ""
    except OverflowError:
        return None, f"{name} has a number beyond 64 bits"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return None, f"{name} does not fit its schema: {'.'.join(map(str, first['loc']))}: {first['msg']}"
