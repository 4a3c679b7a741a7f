"""Tags and notes of sweeps and runs. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none, write_json

FILE = "annotation.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=/+-]{0,63}")


@dataclass(frozen=True)
class Annotation:
    """Content of `annotation.json` (`disttrain.records.annotation`)."""

    tags: tuple[str, ...] = ()
    note: str | None = None


def read_annotation(folder: Path) -> Annotation:
    """The annotation of a sweep's or run's folder; an empty one if there is none, or it cannot be read."""
    record = read_json_or_none(folder / FILE)
    if record is None:
        return Annotation()
    tags, note = record.get("tags"), record.get("note")
    return Annotation(
        tuple(map(str, tags)) if isinstance(tags, list) else (), note if isinstance(note, str) else None
    )


def annotate(
    folder: Path, *, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None
) -> Annotation:
    """Change the annotation of a folder. A `note` of None leaves the note, an empty one removes it."""
    before = read_annotation(folder)
    text = before.note if note is None else " ".join(note.split()) or None
    now = Annotation(tuple(sorted({*before.tags, *add} - {*remove})), text)
    if now != before:
        write_json(folder / FILE, {"schema_version": 1, "tags": list(now.tags), "note": now.note})
    return now


def check_tags(tags: Iterable[str], flag: str) -> None:
    """Raise `ConfigError` for a text that cannot be a tag."""
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ConfigError(
                f"{tag!r} cannot be a tag: at most 64 letters, digits and . _ : = / + -, "
                "the first a letter or digit",
                at=flag,
            )
