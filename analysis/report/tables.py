"""Tables as text for templates: formatted cells, links to definitions and runs, and what all rows share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.report.cells import Cell, cell
from analysis.report.definitions import anchor
from analysis.report.section import Column, RunLink, Table, Value
from analysis.stats.estimates import Estimate

MOST_ROWS = 100
"""Rows of a table on the page; `report.json` has all."""
OPEN = 8
"""Rows and columns up to which a table is open; a larger one is folded."""
ALWAYS = frozenset({"ratio", "verdict"})
"""Names of columns that stay where all rows have one text: they are the result of their table."""
_LEAST_ROWS = 3
"""Rows from which on a column of one text is left out and named once."""
_MOST_SOURCES = 5
_ALONE = "n=1"


@dataclass(frozen=True)
class Head:
    """Heading of a column; `href` is the anchor of its definition, or empty."""

    text: str
    numeric: bool = False
    href: str = ""
    key: bool = False
    """Whether the column names its row."""

    @property
    def style(self) -> str:
        """CSS classes."""
        return f"{'' if self.numeric else 'text'} {'key' if self.key else ''}".strip()


@dataclass(frozen=True)
class CellView:
    """One cell: its text, the file that it links to, and the runs behind its row."""

    cell: Cell
    href: str = ""
    key: str = ""
    """Key of a run, by which its marks in figures are highlighted."""
    sources: Sequence[tuple[str, str]] = ()
    """Address and name of runs."""


@dataclass(frozen=True)
class TableView:
    """A table for a template."""

    words: str
    """Caption, with what all rows share."""
    heads: list[Head]
    rows: list[list[CellView]]
    left_out: int
    """Rows that the page does not show."""
    emphasized: frozenset[int]

    @property
    def folded(self) -> bool:
        return max(len(self.rows), len(self.heads)) > OPEN


def table_view(table: Table, out: Path | None = None, most_rows: int = MOST_ROWS) -> TableView:
    """Format a table, without columns that have no value, and with columns of one text as words.

    Links are relative to the folder `out`; without it, there are none to the runs behind a row.
    """
    heads: list[Head] = []
    columns: list[list[CellView]] = []
    same: list[str] = []
    most_rows = min(most_rows, table.most_rows or most_rows)
    shown = [_views(table, at, out) for at in range(len(table.columns))]
    folds = [_is_one_text(table, at, views) for at, views in enumerate(shown)]
    keys = [column.key or not at for at, column in enumerate(table.columns)]
    # A table whose columns all have one text keeps them: names of rows alone are no table.
    folds_any = any(views and not (key or fold) for views, key, fold in zip(shown, keys, folds, strict=True))
    for column, views, key, fold in zip(table.columns, shown, keys, folds, strict=True):
        if table.rows and not views:
            continue
        if folds_any and fold and not key:
            same.append(f"{column.heading} {views[0].cell.line.removesuffix('.')}")
            continue
        address = f"details.html#{anchor(column.formula_id)}" if column.formula_id else ""
        heads.append(Head(column.heading, bool(column.unit), address, key))
        columns.append(views[:most_rows])
    note, columns = _shared_repeats(columns)
    if table.sources and out is not None:
        heads.append(Head("runs"))
        links = [[(run_href(link, out), link.name) for link in row[:_MOST_SOURCES]] for row in table.sources]
        columns.append([CellView(Cell(""), sources=row) for row in links[:most_rows]])
    words = [table.caption, f"Estimates: {note}." if note else ""]
    words.append(f"The same in all {len(table.rows)} rows: {'; '.join(same)}." if same else "")
    rows = [list(row) for row in zip(*columns, strict=True)]
    left_out = max(0, len(table.rows) - most_rows)
    return TableView(" ".join(filter(None, words)), heads, rows, left_out, frozenset(table.emphasized))


def _views(table: Table, at: int, out: Path | None) -> list[CellView]:
    """Cells of a column; none where no row has a value."""
    if all(row[at] in (None, "") for row in table.rows):
        return []
    column, values = table.columns[at], [row[at] for row in table.rows]
    return [_cell(value, column, out, _largest(values, column)) for value in values]


def _is_one_text(table: Table, at: int, views: Sequence[CellView]) -> bool:
    one = len({view.cell.line for view in views}) == 1
    return len(views) >= _LEAST_ROWS and one and table.columns[at].name not in ALWAYS


def _shared_repeats(columns: list[list[CellView]]) -> tuple[str, list[list[CellView]]]:
    """The number of repeats that all estimates have, and the cells without it; empty where they differ."""
    repeats = {view.cell.repeats for column in columns for view in column if view.cell.interval}
    if len(repeats) != 1:
        return "", columns
    (note,) = repeats
    return note, [[replace(view, cell=_without(view.cell, note)) for view in column] for column in columns]


def _without(value: Cell, note: str) -> Cell:
    """A single repeat has no interval, which the note says for all cells."""
    interval = value.interval.removeprefix(f"{note}, ")
    if note == _ALONE and interval == "no interval":
        interval = ""
    return value._replace(interval=interval, repeats="")


def _largest(values: Sequence[Value], column: Column) -> float:
    """The longest duration of a column in seconds."""
    numbers = [each.value if isinstance(each, Estimate) else each for each in values]
    known = [abs(each) for each in numbers if isinstance(each, float)]
    return max(known, default=0.0) if column.unit == "s" else 0.0


def _cell(value: Value, column: Column, out: Path | None, largest_s: float) -> CellView:
    if isinstance(value, RunLink):
        path = Path(value.path)
        return CellView(cell(value, ""), run_href(value, out), f"{path.parent.name}/{path.name}")
    return CellView(cell(value, column.unit, largest_s))


def run_href(link: RunLink, out: Path | None) -> str:
    """Address of a run's `metrics.json`, or of its `run.json` without one, relative to `out`."""
    run = Path(link.path)
    file = run / "metrics.json"
    if not file.exists():
        file = run / "run.json"
    return os.path.relpath(file.absolute(), (out or Path()).absolute())
