"""Tables without repetition: a column of one text and a note of all cells are given once, for all rows."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.report.cells import Cell

ALWAYS = frozenset({"ratio", "verdict"})
"""Names of columns that stay where all rows have one text: they are the result of their table."""
_LEAST_ROWS = 3
"""Rows from which on a column of one text is left out."""


def constant(column: Sequence[Cell]) -> bool:
    """Whether all rows, three at least, have the same text, so that one note can replace the column."""
    return len(column) >= _LEAST_ROWS and len({cell.line for cell in column}) == 1


def shared_note(column: Sequence[Cell]) -> tuple[str, list[Cell]]:
    """The note that all estimates of a column share, and the cells without it.

    A note is all that follows the bounds of an interval: `within the run, n=1`, or `n=1, no interval`.
    Estimates without bounds beside others with bounds keep the reason: `no interval`.
    The note is empty, and the cells are unchanged, where estimates differ in it or where there is one.
    """
    estimates = [cell for cell in column if cell.interval]
    notes = {_note(cell) for cell in estimates if _bounds(cell)} or {_note(cell) for cell in estimates}
    if len(estimates) < 2 or len(notes) > 1 or len({cell.repeats for cell in estimates}) > 1:
        return "", list(column)
    (note,) = notes
    return note, [cell._replace(interval=_bounds(cell) or _reason(cell, note), repeats="") for cell in column]


def table_note(notes: Sequence[str]) -> str:
    """The note of all columns with estimates, two at least, for the caption; empty where they differ."""
    return notes[0] if len(notes) > 1 and len(set(notes)) == 1 else ""


def _reason(cell: Cell, note: str) -> str:
    """The reason for no interval, where the shared note does not state it."""
    own = cell.interval.removeprefix(f"{cell.repeats}, ")
    return "" if own in note else own


def _bounds(cell: Cell) -> str:
    return cell.interval[: cell.interval.index("]") + 1] if cell.interval.startswith("[") else ""


def _note(cell: Cell) -> str:
    rest = cell.interval.removeprefix(_bounds(cell)).strip()
    repeats = "" if cell.repeats in cell.interval else cell.repeats
    return ", ".join(part for part in (rest, repeats) if part)
