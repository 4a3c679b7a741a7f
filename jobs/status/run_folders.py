"""The folders of sweeps and runs: find them, list them, and their tags and notes. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import IrregularFile, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir

ANNOTATION = "annotation.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=/+-]{0,63}")


@dataclass(frozen=True)
class Annotation:
    """Content of `annotation.json` (`disttrain.records.planned`)."""

    tags: tuple[str, ...] = ()
    note: str | None = None


def runs_of(root: Path, sweep: str) -> list[RunDir]:
    """The runs of a sweep, in natural order: its folders with a `run.json`, or that this user may not read.

    Raises `ConfigError` for a sweep that this user may not read.
    """
    folder = root / sweep
    return [RunDir(folder / name) for name in subfolders(folder) if _may_exist(f"{folder}/{name}/run.json")]


def runs_below(root: Path, warn: Callable[[str], None] = lambda line: None) -> list[RunDir]:
    """The runs of all sweeps. `warn` gets one line for each sweep that this user may not read."""
    found: list[RunDir] = []
    for sweep in subfolders(root):
        try:
            found += runs_of(root, sweep)
        except ConfigError as error:
            warn(str(error))
    return found


def names_in(run: RunDir) -> set[str]:
    """The names in a run directory.

    Raises `IrregularFile` if the journal, the attempts or one attempt is a link, and not a folder. Another
    user may have made it, to files that only the reader of the run may read. `checkpoints` may be a link to
    another disk: readers list the names in it, and open no file.
    """
    folder = str(run.path)
    names = _names(folder)
    if "attempts" in names:
        _names(f"{folder}/attempts")
    return names


def _names(folder: str) -> set[str]:
    names = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if (name in ("submissions", "attempts") or name.isdigit()) and entry.is_symlink():
                raise IrregularFile(f"{entry.path} is a symbolic link, not a folder")
            names.add(name)
    return names


def _may_exist(path: str) -> bool:
    """Whether a file exists, or lies in a folder that this user may not read."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def subfolders(path: Path) -> list[str]:
    """Names of the visible folders in `path`, in natural order; none if `path` does not exist."""
    try:
        with os.scandir(path) as found:
            names = [child.name for child in found if child.is_dir() and not child.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return sorted(names, key=natural_key)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that orders the numbers inside a name by value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def read_annotation(folder: Path | str) -> Annotation:
    """The annotation of a sweep's or run's folder; an empty one if there is none, or it cannot be read."""
    record = read_json_or_none(f"{folder}/{ANNOTATION}")
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
        write_json(folder / ANNOTATION, {"schema_version": 1, "tags": list(now.tags), "note": now.note})
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
