"""Records and sentences that the sections of the page of results share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import result_record

NONE = "\N{EN DASH}"
"""Cell without a figure."""
Records = dict[str, dict[str, Any]]
"""Records by `BENCHMARK#label`."""


def newest_records(folder: Path) -> Records:
    """The newest record of each `BENCHMARK#label`."""
    return {
        f"{path.stem}#{record['label']}": record
        for path in sorted(folder.glob("*.jsonl"))
        for record in result_record.read(path)
    }


def records_of(records: Records, key: str) -> Sequence[dict[str, Any]]:
    """The record of this key, as a list that is empty without one."""
    return [records[key]] if key in records else []


def command_lines(records: Records, key: str) -> list[str]:
    """Command, date, machine and load of a record."""
    lines = []
    for record in records_of(records, key):
        machine, commit = record["machine"], (record["commit"] or "unknown")[:8]
        text = (
            f"`{record['command']}`, {record['date'][:10]}, commit {commit}, {machine['cpu_count']} "
            f"processors of {machine['processor']}, load {machine['load_at_start']:g} at the start."
        )
        lines.append(prose(text))
    return lines


def prose(text: str) -> str:
    """A paragraph in lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False) + "\n"


def not_measured(source: str, columns: int) -> list[str]:
    """A row without figures."""
    return [source, "not measured", *[NONE] * (columns - 2)]
