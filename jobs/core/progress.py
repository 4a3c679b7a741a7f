"""Report the progress of a loop to the caller, such as the progress bar of `jobs.cli`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Passes items through and shows how many of their total number are done; the text describes the work."""


def without_progress(items: Iterable[Any], text: str, total: int) -> Iterable[Any]:
    """A `Progress` that shows nothing."""
    return items
