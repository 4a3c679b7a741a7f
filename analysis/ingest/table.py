"""Parse a CSV table of step times per rank; docs/ingest.md describes its columns."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError, nearest
from disttrain.records.steps import PHASES

REQUIRED = ("step", "rank", "step_s")
_COUNTS = ("step", "rank", "samples", "nodes", "world_size", "repeat")
_SECONDS = ("step_s", "start_s", *PHASES)
_TEXTS = ("sweep", "run", "host", "framework", "model", "device", "strategy")
COLUMNS = (*_COUNTS, *_SECONDS, "loss", *_TEXTS)
PER_RUN = ("nodes", "world_size", "repeat", "framework", "model", "device", "strategy")
"""Columns with one value for all rows of a run."""
_SLACK = 1e-3
"""Share by which rounded phases may exceed `step_s`."""

Row = dict[str, Any]


@dataclass
class TableRun:
    """The rows of one run."""

    sweep: str
    name: str
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    """By rank and step."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Values of the columns `PER_RUN`."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank."""


def read_table(path: Path, sweep: str) -> tuple[list[TableRun], list[str]]:
    """The runs of a table, and its columns that are not read; `sweep` names runs without that column.

    Raises:
        ConfigError: the file cannot be read or a value is not allowed; one line with file, line and column.
    """
    runs: dict[tuple[str, str], TableRun] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            ignored = _check_header(path, header)
            for cells in reader:
                if any(cells):
                    _add(runs, _Cells(path, reader.line_num, header, cells), sweep)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not runs:
        raise ConfigError(f"{path} has no rows")
    return list(runs.values()), ignored


def drop_incomplete_steps(path: Path, run: TableRun) -> int:
    """Drop the rows of steps in which a rank of the run has none; the number of these steps.

    Means over ranks and sums over steps would otherwise weigh the ranks by their rows.

    Raises:
        ConfigError: no step has rows of all ranks of the run.
    """
    ranks = len({rank for rank, _ in run.rows})
    found = Counter(step for _, step in run.rows)
    complete = {step for step, rows in found.items() if rows == ranks}
    if not complete:
        raise ConfigError(f"{path}, run {run.sweep}/{run.name}: no step has rows of all {ranks} ranks")
    run.rows = {key: row for key, row in run.rows.items() if row["step"] in complete}
    return len(found) - len(complete)


def separate_waiting(run: TableRun) -> None:
    """Divide the one communication column of a table with compute per rank into waiting and transfer.

    All ranks leave a collective together, so that the last one to arrive does not wait: its communication is
    the transfer of the step, and what another rank has beyond it is waiting. A column with one value for all
    ranks of a step stays as it is.
    """
    rows = [*run.rows.values()]
    whole = all("compute_s" in row and "comm_transfer_s" in row for row in rows)
    if not whole or any("comm_wait_s" in row for row in rows) or len({row["rank"] for row in rows}) < 2:
        return
    least_s: dict[int, float] = {}
    for row in rows:
        least_s[row["step"]] = min(row["comm_transfer_s"], least_s.get(row["step"], math.inf))
    if all(row["comm_transfer_s"] == least_s[row["step"]] for row in rows):
        return
    for row in rows:
        row["comm_wait_s"] = row["comm_transfer_s"] - least_s[row["step"]]
        row["comm_transfer_s"] = least_s[row["step"]]


def _check_header(path: Path, header: list[str]) -> list[str]:
    """The columns that are not read."""
    separators = [each for each in (";", "\t", "|") if len(header) == 1 and each in header[0]]
    if separators:
        raise ConfigError(f"{path}:1: columns are separated by {separators[0]!r}; the separator must be ','")
    for name in REQUIRED:
        if name not in header:
            similar = [given for given in header if name in nearest(given, REQUIRED)]
            hint = f"; {similar[0]!r} is not a column of docs/ingest.md" if similar else ""
            raise ConfigError(f"{path}:1: no column {name!r}; needed are {', '.join(REQUIRED)}{hint}")
    for name in header:
        if header.count(name) > 1:
            raise ConfigError(f"{path}:1: two columns {name!r}")
    unknown = [name for name in header if name not in COLUMNS]
    for name in unknown:
        if hint := nearest(name, COLUMNS):
            raise ConfigError(f"{path}:1: unknown column {name!r}{hint}")
    return unknown


class _Cells:
    """One row of the table; errors name file, line and column."""

    def __init__(self, path: Path, line: int, header: list[str], cells: list[str]) -> None:
        self._where = f"{path}:{line}"
        if len(cells) != len(header):
            raise ConfigError(f"{self._where}: {len(cells)} values for {len(header)} columns")
        self._texts = {name: text.strip() for name, text in zip(header, cells, strict=True)}

    def error(self, column: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._where}, column {column!r}: {problem}")

    def values(self) -> Iterator[tuple[str, Any]]:
        """Name and value of each cell of `COLUMNS` that is not empty."""
        for name, text in self._texts.items():
            if not text and name in REQUIRED:
                raise self.error(name, "empty")
            if text and name in COLUMNS:
                yield name, self._value(name, text)

    def _value(self, name: str, text: str) -> Any:
        if name in _TEXTS:
            return text
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, f"{text!r} is not a number") from None
        if name == "loss":
            return value if math.isfinite(value) else None
        if not math.isfinite(value) or value < 0 or (name == "step_s" and value == 0):
            least = "greater than 0" if name == "step_s" else "0 or greater"
            raise self.error(name, f"{text} is not allowed; it must be finite and {least}")
        if name not in _COUNTS:
            return value
        if value != int(value) or (value == 0 and name not in ("rank", "step", "repeat")):
            raise self.error(name, f"{text} is not a whole number{'' if value else ' from 1'}")
        return int(value)


def _add(runs: dict[tuple[str, str], TableRun], cells: _Cells, sweep: str) -> None:
    row = dict(cells.values())
    names = row.pop("sweep", sweep), row.pop("run", "run")
    for column, name in zip(("sweep", "run"), names, strict=True):
        if name.startswith(".") or "/" in name or "\\" in name:
            raise cells.error(column, f"{name!r} is not a name of a folder")
    run = runs.setdefault(names, TableRun(*names))
    rank, step = row["rank"], row["step"]
    if (rank, step) in run.rows:
        raise cells.error("step", f"rank {rank} has a second row for step {step}")
    for column in PER_RUN:
        value = row.pop(column, None)
        if run.facts.setdefault(column, value) != value:
            earlier = run.facts[column]
            raise cells.error(column, f"{value!r} differs from {earlier!r} in an earlier row of the run")
    host = row.pop("host", "")
    if run.hosts.setdefault(rank, host) != host:
        raise cells.error("host", f"rank {rank} was on {run.hosts[rank]!r} in an earlier row")
    _add_other(row, cells)
    run.rows[rank, step] = row


def _add_other(row: Row, cells: _Cells) -> None:
    """Time in no given phase is `other_s`, so that the phases sum to `step_s`.

    Of a row with phases, `unassigned_s` is that time.
    """
    given_s = sum(row.get(name, 0.0) for name in PHASES)
    if given_s > row["step_s"] * (1 + _SLACK):
        raise cells.error("step_s", f"{row['step_s']} s is less than the sum of the phases, {given_s:.6g} s")
    rest_s = max(row["step_s"] - given_s, 0.0)
    row["unassigned_s"] = rest_s if any(name in row for name in PHASES) else 0.0
    row["other_s"] = rest_s + row.get("other_s", 0.0)
