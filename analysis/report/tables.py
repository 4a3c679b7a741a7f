"""Tables as text for templates: formatted cells, without empty columns."""

from __future__ import annotations

from typing import NamedTuple

from analysis.report.section import Column, Table, Value
from analysis.stats.estimates import Estimate
from analysis.units import Cell, cell

MOST_ROWS = 100
"""Rows of a table on the page; `report.json` has all."""
OPEN = 8
"""Rows and columns up to which a table is open; a larger one is folded."""


class TableView(NamedTuple):
    """A table for a template."""

    words: str
    """Caption, with the number of repeats that all estimates have."""
    columns: list[Column]
    rows: list[tuple[tuple[Value, Cell], ...]]
    left_out: int
    """Rows that the page does not show."""

    @property
    def folded(self) -> bool:
        return max(len(self.rows), len(self.columns)) > OPEN


def table_view(table: Table) -> TableView:
    """Format a table."""
    columns = {}
    rows = table.rows[:MOST_ROWS]
    left_out = len(table.rows) - len(rows)
    for at, column in enumerate(table.columns):
        values = [row[at] for row in rows]
        if not values or any(value not in (None, "") for value in values):
            largest = max(map(_seconds, values), default=0.0) if column.unit == "s" else 0.0
            columns[column] = [(value, cell(value, column.unit, largest)) for value in values]
    repeats = {one.repeats for column in columns.values() for _, one in column if one.repeats}
    note = repeats.pop() if len(repeats) == 1 else ""
    words = f"{table.caption} Estimates: {note}." if note else table.caption
    shown = [[(value, _without(one, note)) for value, one in column] for column in columns.values()]
    return TableView(words, [*columns], [*zip(*shown, strict=True)], left_out)


def _without(value: Cell, note: str) -> Cell:
    """A single repeat has no interval, which the note says for all cells."""
    if not note:
        return value
    alone = note == "n=1" and value.interval == "no interval"
    return value._replace(interval="" if alone else value.interval, repeats="")


def _seconds(value: Value) -> float:
    number = value.value if isinstance(value, Estimate) else value
    return abs(number) if isinstance(number, float) else 0.0
