"""Read a record of a run directory, or the reason for which it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from analysis.read.lines import read_object
from analysis.read.plausible import impossible_number
from disttrain.records.base import SCHEMA_VERSION, Record
from disttrain.records.json_files import CorruptFile

CURVES = ("loss_history", "grad_norm_history", "eval_history", "communication_computation_history")
"""Lists of points of metrics.json (`disttrain.records.metrics`)."""
R = TypeVar("R", bound=Record)


def read_record(path: Path, model: type[R]) -> tuple[R | None, str]:
    """A record with a caveat (or ""), or None with the problem."""
    content, problem = read_content(path)
    return (None, problem) if content is None else validated(path.name, content, model)


def read_content(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The object in a file, or None with the problem; the numbers of curves are not checked.

    A higher schema version may give a field another meaning, so such a record is not used.
    """
    try:
        content = read_object(path)
    except FileNotFoundError:
        return None, f"{path.name} is missing"
    except (CorruptFile, OSError):
        return None, f"{path.name} cannot be read"
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return None, (
            f"{path.name} has schema version {version}, and this version of disttrain reads at most "
            f"{SCHEMA_VERSION}; write the report with the newer version"
        )
    numbers = {name: value for name, value in content.items() if name not in CURVES}
    if problem := impossible_number(numbers):
        return None, f"{path.name} has an impossible figure: {problem}"
    return content, ""


def validated(name: str, content: dict[str, Any], model: type[R]) -> tuple[R | None, str]:
    """The record, and a caveat if a newer version wrote fields that this one does not have; or None with the
    problem. No type stands for another one: neither `true` for 1, nor "1"."""
    caveat, problem = "", ""
    for _ in range(2):
        try:
            return model.model_validate(content, strict=True), caveat
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            where = ".".join(map(str, first["loc"]))
            problem = f"{name} does not fit its schema: {where}: {first['msg']}"
            for *section, key in unknown:
                holder: Any = content
                for part in section:
                    holder = holder[part]
                holder.pop(key, None)
            names = ", ".join(".".join(map(str, loc)) for loc in unknown[:3])
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            caveat = f"{name} has fields that this version does not read: {names}{more}"
    return None, problem
