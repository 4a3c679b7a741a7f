"""The end of a log, and a line of it as part of a message. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from disttrain.records.regular_file import open_regular

_TAIL_BYTES = 32 * 1024
_MAX_CHARACTERS = 300


def read_tail(path: Path) -> str:
    """The last 32 KiB of a log; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def shortened(text: str) -> str:
    """The words of `text` in one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"
