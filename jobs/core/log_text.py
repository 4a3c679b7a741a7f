"""The end of a log, and lines of it as part of a message. Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from disttrain.records.json_files import open_regular

_TAIL_BYTES = 32 * 1024
_MAX_CHARACTERS = 300
_NO_CAUSE = re.compile(
    r"^(?:(?:\[rank\d+\]:)?\[?[IWEF]\d{4} \d\d:\d\d:\d\d"  # glog: PyTorch, torchrun
    r"|.*:\d+:\d+ \[-?\d+\] .*NCCL (?:INFO|WARN) "
    r"|.*:\d+: \w*Warning: .*(?:\n  )?).*\n?",  # of Python, with the line of code
    re.MULTILINE,
)


def read_tail(path: Path) -> str:
    """The last 32 KiB of a log; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def error_lines(log: str) -> list[str]:
    """The lines of a log without log lines of PyTorch, torchrun and NCCL, and without warnings of Python."""
    return [line for line in _NO_CAUSE.sub("", log).splitlines() if line.strip(" =-")]


def shortened(text: str) -> str:
    """The words of `text` in one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"
