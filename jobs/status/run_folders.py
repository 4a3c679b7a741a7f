"""Find the folders of sweeps and runs. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.regular_file import IrregularFile
from disttrain.records.run_directory import RunDir


def runs_of(root: Path, sweep: str) -> list[RunDir]:
    """The runs of a sweep, in natural order: its folders with a `run.json`, or that this user may not read.

    Raises `ConfigError` for a sweep that this user may not read.
    """
    found = (RunDir(root / sweep / name) for name in subfolders(root / sweep))
    return [run for run in found if _may_exist(run.run_json)]


def runs_below(root: Path, warn: Callable[[str], None] = lambda line: None) -> list[RunDir]:
    """The runs of all sweeps. `warn` gets one line for each sweep that this user may not read."""
    found: list[RunDir] = []
    for sweep in subfolders(root):
        try:
            found += runs_of(root, sweep)
        except ConfigError as error:
            warn(str(error))
    return found


def refuse_links(run: RunDir) -> None:
    """Raise `IrregularFile` if the journal, the attempts or one attempt is a link, and not a folder.

    Another user may have made it, to files that only the reader of the run may read. `checkpoints` may be a
    link to another disk: readers list the names in it, and open no file.
    """
    for folder in (run.submissions, run.path / "attempts", *(attempt.path for attempt in run.attempts())):
        if folder.is_symlink():
            raise IrregularFile(f"{folder} is a symbolic link, not a folder")


def _may_exist(path: Path) -> bool:
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
