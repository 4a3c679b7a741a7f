"""Tags and the note of a sweep or run."""

from __future__ import annotations

from disttrain.records.base import Record


class AnnotationRecord(Record):
    """`annotation.json` of a sweep or run, which the user may change at any time.

    It is no part of the config, and so of no hash.
    """

    tags: list[str] = []
    """In alphabetical order."""
    note: str | None = None
