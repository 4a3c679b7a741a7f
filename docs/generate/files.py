"""Where generated files lie, how a table is written, and how files are brought up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from disttrain.records.json_files import write_text

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a line break within a cell becomes a space, because it would end the row."""
    lines = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *lines))


def update_files(expected: Mapping[Path, str], orphans: Sequence[Path], arguments: Sequence[str]) -> int:
    """Write files that differ from their expected text, and delete orphans; with `--check` only list them."""
    stale = [path for path, text in expected.items() if not path.is_file() or path.read_text() != text]
    if list(arguments) == ["--check"]:
        for path in [*stale, *orphans]:
            name = path.resolve().relative_to(ROOT)
            print(f"{name} is out of date: run `make schemas`", file=sys.stderr)
        return 1 if stale or orphans else 0
    for path in stale:
        write_text(path, expected[path])
    for path in orphans:
        path.unlink()
    return 0
