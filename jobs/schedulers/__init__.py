"""Schedulers: each is a folder here with a `scheduler.py`."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def names(part: str = "scheduler") -> tuple[str, ...]:
    """Names of the schedulers, or of those that have another part, such as `doctor`."""
    found = [path.parent.name for folder in __path__ for path in Path(folder).glob(f"*/{part}.py")]
    return tuple(sorted(found))
