"""Schedulers: each is a folder here with a `scheduler.py`."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the schedulers."""
    return tuple(
        sorted(path.parent.name for folder in __path__ for path in Path(folder).glob("*/scheduler.py"))
    )
