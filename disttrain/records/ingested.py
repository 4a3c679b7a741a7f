"""Origin of a run whose step times were ingested from a table of another program."""

from __future__ import annotations

from disttrain.records.base import Record


class Ingested(Record):
    """The table, and what it has about a run beside the step records."""

    source: str
    """Name of the CSV file."""
    sha256: str
    """Of its content."""
    rows: int
    """Rows of this run that are used."""
    incomplete_steps: int = 0
    """Steps left out, since some rank of the run has no row of them."""
    ingested: str
    """UTC, ISO 8601."""
    hosts: list[str] = []
    """Host of each rank; empty without the column `host`."""
