"""Tables as text for templates: formatted cells, without empty columns, and what all rows share said once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.report.section import Column, Table, Value
from analysis.stats.estimates import Estimate
from analysis.units import Cell, cell

MOST_ROWS = 100
"""Rows of a table on the page; `report.json` has all."""
OPEN = 8
"""Rows and columns up to which a table is open; a larger one is folded."""
ALWAYS = frozenset({"ratio", "verdict"})
"""Names of columns that stay where all rows have one text: they are the result of their table."""
_LEAST_ROWS = 3
"""Rows from which on a column of one text is left out and named once."""


class TableView(NamedTuple):
    """A table for a template."""

    words: str
    """Caption, with what all rows share."""
    columns: list[Column]
    rows: list[tuple[tuple[Value, Cell], ...]]
    left_out: int
    """Rows that the page does not show."""

    @property
    def folded(self) -> bool:
        return max(len(self.rows), len(self.columns)) > OPEN


def table_view(table: Table) -> TableView:
    """Format a table; a number of repeats that all estimates have is said once, too."""
    columns = {}
    rows = table.rows[: table.most_rows or MOST_ROWS]
    left_out = len(table.rows) - len(rows)
    for at, column in enumerate(table.columns):
        values = [row[at] for row in rows]
        if not values or any(value not in (None, "") for value in values):
            largest = max(map(_seconds, values), default=0.0) if column.unit == "s" else 0.0
            columns[column] = [(value, cell(value, column.unit, largest)) for value in values]
    same = [column for column, cells in columns.items() if _is_one_text(table, column, cells)]
    if any(not _names_row(table, column) for column in columns.keys() - same):
        shared = [f"{column.heading} {columns.pop(column)[0][1].line.removesuffix('.')}" for column in same]
    else:  # names of rows alone are no table
        shared = []
    cells = [one for column in columns.values() for _, one in column]
    repeats = {one.repeats for one in cells if one.repeats}
    note = repeats.pop() if len(repeats) == 1 else ""
    words = [table.caption, f"Estimates: {note}." if note else ""]
    which = f"{'the first' if left_out else 'all'} {len(rows)} rows"
    words.append(f"The same in {which}: {'; '.join(shared)}." if shared else "")
    shown = [[(value, _without(one, note)) for value, one in column] for column in columns.values()]
    return TableView(" ".join(filter(None, words)), [*columns], [*zip(*shown, strict=True)], left_out)


def _names_row(table: Table, column: Column) -> bool:
    return column.key or column is table.columns[0]


def _is_one_text(table: Table, column: Column, cells: Sequence[tuple[Value, Cell]]) -> bool:
    one = len(cells) >= _LEAST_ROWS and len({each.line for _, each in cells}) == 1
    return one and column.name not in ALWAYS and not _names_row(table, column)


def _without(value: Cell, note: str) -> Cell:
    """A single repeat has no interval, which the note says for all cells."""
    if not note:
        return value
    alone = note == "n=1" and value.interval == "no interval"
    return value._replace(interval="" if alone else value.interval, repeats="")


def _seconds(value: Value) -> float:
    number = value.value if isinstance(value, Estimate) else value
    return abs(number) if isinstance(number, float) else 0.0
