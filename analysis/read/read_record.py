"""Read a record of a run directory, or the reason for which it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from analysis.read.json_columns import read_object
from analysis.read.plausible import impossible_number
from disttrain.records.base import SCHEMA_VERSION, Record
from disttrain.records.json_files import CorruptFile

_CURVES = ("loss_history", "grad_norm_history", "eval_history", "communication_computation_history")

R = TypeVar("R", bound=Record)


def read_record(path: Path, model: type[R], *, curves: bool = True) -> tuple[R | None, str]:
    """A record with a caveat (or ""), or None with the problem.

    A higher schema version may give a field another meaning, so such a record is not used. Without `curves`,
    of each list of points only the last is read.
    """
    try:
        content = read_object(path)
        if _is_newer(content):
            return None, (
                f"{path.name} has schema version {content['schema_version']}, and this version of disttrain "
                f"reads at most {SCHEMA_VERSION}; write the report with the newer version"
            )
        if problem := impossible_number(content):
            return None, f"{path.name} has an impossible figure: {problem}"
        if not curves:  # validating a thousand points takes longer than all the rest
            content |= {name: content[name][-1:] for name in _CURVES if isinstance(content.get(name), list)}
        return _validated(path.name, content, model)
    except FileNotFoundError:
        return None, f"{path.name} is missing"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"{path.name} does not fit its schema: {where}: {first['msg']}"
    except (CorruptFile, OSError):
        return None, f"{path.name} cannot be read"


def _is_newer(content: dict[str, Any]) -> bool:
    version = content.get("schema_version")
    return isinstance(version, int) and version > SCHEMA_VERSION


def _validated(name: str, content: dict[str, Any], model: type[R]) -> tuple[R, str]:
    """The record, and a caveat if a newer version wrote fields that this one does not have."""
    try:
        return model.model_validate(content), ""
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
        for *section, key in unknown:
            holder: Any = content
            for part in section:
                holder = holder[part]
            holder.pop(key, None)
        record = model.model_validate(content)
        names = ", ".join(".".join(map(str, place)) for place in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        return record, f"{name} has fields that this version does not read: {names}{more}"
