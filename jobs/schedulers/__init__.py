"""Schedulers: each is a folder here with a `scheduler.py`. Names of schedulers and of site profiles."""

from __future__ import annotations

import functools
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "profiles"


@functools.cache
def names(part: str = "scheduler") -> tuple[str, ...]:
    """Names of the schedulers, or of those that have another part, such as `doctor`."""
    found = [path.parent.name for folder in __path__ for path in Path(folder).glob(f"*/{part}.py")]
    return tuple(sorted(found))


def profile_files() -> dict[str, Path]:
    """Files of the named profiles, by name. A file in `~/.config/disttrain/profiles/` comes first."""
    folders = (SHIPPED, Path.home() / ".config" / "disttrain" / "profiles")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}
