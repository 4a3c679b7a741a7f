"""Tables as text for templates: formatted cells, links to definitions and to run files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.report.cells import Cell, cell
from analysis.report.compact import ALWAYS, constant, shared_note, table_note
from analysis.report.definitions import anchor
from analysis.report.section import Column, RunLink, Table

MOST_ROWS = 100
"""Rows of a table on the page; `report.json` has all."""
_MOST_SOURCES = 5


@dataclass(frozen=True)
class Head:
    """Heading of a column."""

    text: str
    numeric: bool
    href: str
    """Anchor of the definition; empty without one."""
    key: bool = False
    """Whether the column names its row."""
    note: str = ""
    """Note that all estimates of the column share."""


@dataclass(frozen=True)
class CellView:
    """One cell: its text, and the file that it links to."""

    cell: Cell
    numeric: bool
    href: str = ""
    key: str = ""
    """Key of a run, by which its marks in figures are highlighted."""


@dataclass(frozen=True)
class TableView:
    """A table for a template."""

    name: str
    caption: str
    heads: list[Head]
    rows: list[list[CellView]]
    sources: list[list[tuple[str, str]]]
    """Address and name of the runs behind each row."""
    left_out: int
    """Rows that the page does not show."""
    emphasized: frozenset[int]
    same: list[tuple[Head, str]]
    """Columns that are left out, because all rows have one text."""
    note: str
    """Note that all estimates of the table share."""

    @property
    def names_only(self) -> bool:
        """Whether the columns that name the rows are all that is left, so that `same` replaces the table."""
        return bool(self.same) and all(head.key for head in self.heads)


def table_view(table: Table, out: Path | None = None, most_rows: int = MOST_ROWS) -> TableView:
    """Format a table without columns that have no value or text, or one text in all rows.

    Columns of `compact.ALWAYS` that have a value stay.
    Links are relative to the folder `out`.
    """
    kept = [
        index
        for index in range(len(table.columns))
        if not table.rows or any(row[index] is not None and row[index] != "" for row in table.rows)
    ]
    columns = [table.columns[index] for index in kept]
    rows = [
        [_cell(row[index], table.columns[index], out) for index in kept] for row in table.rows[:most_rows]
    ]
    sources = [
        [(run_href(link, out), link.name) for link in links[:_MOST_SOURCES]]
        for links in table.sources[:most_rows]
    ]
    heads = [
        Head(
            c.heading,
            bool(c.unit),
            f"details.html#{anchor(c.formula_id)}" if c.formula_id else "",
            c.key or not at,
        )
        for at, c in enumerate(columns)
    ]
    same = [
        at
        for at, head in enumerate(heads)
        if not (head.key or columns[at].name in ALWAYS or any(row[at].href for row in rows))
        and constant([row[at].cell for row in rows])
    ]
    left = [(heads[at], [row[at].cell for row in rows]) for at in same]
    heads = [head for at, head in enumerate(heads) if at not in same]
    rows = [[view for at, view in enumerate(row) if at not in same] for row in rows]
    for at, head in enumerate(heads):
        note, cells = shared_note([row[at].cell for row in rows])
        heads[at] = replace(head, note=note)
        for row, own in zip(rows, cells, strict=True):
            row[at] = replace(row[at], cell=own)
    estimated = [
        at for at, head in enumerate(heads) if head.note or any(row[at].cell.interval for row in rows)
    ]
    note = table_note([*(heads[at].note for at in estimated), *_notes(cells for _, cells in left)])
    if note:
        heads = [replace(head, note="") for head in heads]
    return TableView(
        table.name,
        table.caption,
        heads,
        rows,
        sources,
        max(0, len(table.rows) - most_rows),
        frozenset(table.emphasized),
        [(head, _one_text(cells, note)) for head, cells in left],
        note,
    )


def _notes(columns: Iterable[list[Cell]]) -> list[str]:
    """Notes of the columns that have estimates."""
    return [shared_note(cells)[0] for cells in columns if any(cell.interval for cell in cells)]


def _one_text(cells: list[Cell], note: str) -> str:
    """The one text of a column, without its note if that is the note of the table."""
    own, short = shared_note(cells)
    return (short if own == note else cells)[0].line


def _cell(value: object, column: Column, out: Path | None) -> CellView:
    numeric = bool(column.unit)
    if isinstance(value, RunLink):
        path = Path(value.path)
        return CellView(cell(value, ""), False, run_href(value, out), f"{path.parent.name}/{path.name}")
    return CellView(cell(value, column.unit), numeric)  # type: ignore[arg-type]


def run_href(link: RunLink, out: Path | None) -> str:
    """Address of a run's `metrics.json`, or of its `run.json` without one, relative to `out`."""
    run = Path(link.path)
    file = run / "metrics.json"
    if not file.exists():
        file = run / "run.json"
    return os.path.relpath(file.absolute(), (out or Path()).absolute())


def one_line(row: Sequence[CellView]) -> list[str]:
    """Texts of a row with intervals, for Markdown."""
    return [view.cell.line for view in row]
