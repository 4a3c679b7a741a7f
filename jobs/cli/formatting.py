"""Text for terminals: aligned tables, durations, numbers. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from jobs.cli.terminal import printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> str:
    """Columns aligned with spaces. Columns named in `right` are right-aligned; empty columns are omitted.

    A cell is made `printable` and one line.
    """
    rows = [[" ".join(printable(cell).splitlines()) for cell in row] for row in rows]
    columns = [(title, cells) for title, *cells in zip(head, *rows, strict=True) if any(cells) or not rows]
    aligned = []
    for title, cells in columns:
        width = max(map(len, [title, *cells]))
        aligned.append(
            [cell.rjust(width) if title in right else cell.ljust(width) for cell in [title, *cells]]
        )
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def duration(seconds: float | None) -> str:
    """`42 s`, `3:07 min`, `2:05 h`, `3 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(whole / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}:{minutes % 60:02d} h"
    hours = round(whole / 3600)
    return f"{hours // 24} d {hours % 24} h"


def number(value: float | None, digits: int = 4) -> str:
    """`digits` significant digits, without an exponent below 1e9; empty for None."""
    if value is None:
        return ""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e9 else text


def size(bytes_: float | None) -> str:
    """`812 MB`, `61.2 GB` (1 MB = 1e6 bytes); empty for None."""
    if bytes_ is None:
        return ""
    return f"{bytes_ / 1e6:.0f} MB" if bytes_ < 1e9 else f"{bytes_ / 1e9:.1f} GB"


def count(quantity: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{quantity} {noun}{'' if quantity == 1 else 's'}"


def some_of(names: Sequence[str], separator: str = ", ") -> str:
    """The names, or the first three of more than four: `a, b, c and 7 more`."""
    most = 3 if len(names) > 4 else len(names)
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more else "")


def plain(value: object) -> str:
    """A float without trailing zeros; any other value by `str`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def runs_flag(root: Path) -> str:
    """` --runs DIR` as in a shell, for a command in a message; empty for the default folder."""
    return "" if root == Path("runs") else f" --runs {shlex.quote(str(root))}"
