"""Read a record of a run directory, or the reason for which it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from analysis.read.lines import UNREADABLE
from disttrain.errors import in_one_line
from disttrain.records.base import SCHEMA_VERSION, Record
from disttrain.records.json_files import read_record_bytes

T = TypeVar("T")
R = TypeVar("R", bound=Record)


def read_struct(path: Path, kind: type[T]) -> tuple[T | None, str]:
    """The JSON object in a file, as far as `kind` has its fields, or None with the problem."""
    try:
        return msgspec.json.decode(read_record_bytes(path), type=kind), ""
    except FileNotFoundError:
        return None, f"{path.name} is missing"
    except (*UNREADABLE, OSError) as error:
        return None, f"{path.name} cannot be read: {in_one_line(error)}"


def read_record(path: Path, model: type[R]) -> tuple[R | None, str]:
    """A record, or None with the problem."""
    content, problem = read_content(path)
    return (None, problem) if content is None else validated(path.name, content, model)


def read_content(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The object in a file, or None with the problem.

    A higher schema version may give a field another meaning, so such a record is not used.
    """
    content, problem = read_struct(path, dict[str, Any])
    version = (content or {}).get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return None, (
            f"{path.name} has schema version {version}, and this version of disttrain reads at most "
            f"{SCHEMA_VERSION}; write the report with the newer version"
        )
    return content, problem


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
