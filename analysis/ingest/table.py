"""Parse a CSV table of step times per rank; docs/report.md describes its columns."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from disttrain.errors import ConfigError, nearest
from disttrain.records.steps import PHASES

RUN = ["sweep", "run"]
"""Columns that name a run."""
REQUIRED = ("step", "rank", "step_s")
_TEXTS = (*RUN, "host", "framework", "model", "device", "strategy")
_WHOLE = {
    **dict.fromkeys(("step", "rank", "repeat"), 0),
    **dict.fromkeys(("samples", "nodes", "world_size"), 1),
}
_LEAST = {**_WHOLE, "step_s": 1e-9, **dict.fromkeys(("start_s", *PHASES), 0)}
"""Least value of columns of numbers. A loss may be any number, and is null where it is not finite."""
COLUMNS = (*_LEAST, "loss", *_TEXTS)
PER_RUN = ("nodes", "world_size", "repeat", "framework", "model", "device", "strategy")
"""Columns with one value for all rows of a run."""
_SLACK = 1e-3
"""Share by which rounded phases may exceed `step_s`."""


def read_table(path: Path, sweep: str) -> tuple[pd.DataFrame, list[str]]:
    """The rows of a table by line of the file, and its columns that are not read.

    Rows have all of `COLUMNS`, NaN without a value; `sweep` names runs without that column. Time in no given
    phase is `other_s`, so that the phases sum to `step_s`; of a row with phases, `unassigned_s` is that time.

    Raises:
        ConfigError: the file cannot be read or a value is not allowed; one line with file, line and column.
    """
    texts = _read_texts(path)

    def refuse(bad: pd.Series, column: str, problem: str) -> None:
        """Refuse the first of the bad rows; `problem` may name other columns, such as `{rank}`."""
        if bad.any():
            line = bad.idxmax()
            text = problem.format(**{**rows.loc[line], **texts.loc[line]})
            raise ConfigError(f"{path}:{line}, column {column!r}: {text}")

    rows = texts.reindex(columns=[*COLUMNS], fill_value="").replace("", np.nan)
    for name in (*_LEAST, "loss"):
        values = pd.to_numeric(rows[name], errors="coerce")
        rows[name] = values.where(np.isfinite(values))
    for name, least in _LEAST.items():
        if name in texts:
            bad = ~(rows[name] >= least) | ((name in _WHOLE) & (rows[name] % 1 != 0))
            kind = f"{'whole ' if name in _WHOLE else ''}number from {least:g}"
            refuse(bad & (texts[name].ne("") | (name in REQUIRED)), name, f"{{{name}!r}} is not a {kind}")
    rows = rows.fillna({"sweep": sweep, "run": "run"})
    for name in RUN:
        refuse(rows[name].str.contains(r"^\.|[/\\]"), name, f"{{{name}!r}} is not a name of a folder")
    again = rows.duplicated([*RUN, "rank", "step"])
    refuse(again, "step", "rank {rank} has a second row for step {step}")
    for name, keys in {**dict.fromkeys(PER_RUN, RUN), "host": [*RUN, "rank"]}.items():
        first = rows.groupby(keys)[name].transform("first")
        other = rows[name].notna() & rows[name].ne(first)
        refuse(other, name, f"{{{name}!r}} differs from an earlier row of the {keys[-1]}")
    phases = rows[[*PHASES]]
    rest_s = rows["step_s"] - phases.sum(axis=1)
    refuse(rest_s < -_SLACK * rows["step_s"], "step_s", "{step_s} s is less than the sum of the phases")
    rows["unassigned_s"] = rest_s.clip(lower=0).where(phases.notna().any(axis=1), 0.0)
    rows["other_s"] = rest_s.clip(lower=0) + rows["other_s"].fillna(0)
    return rows, [name for name in texts if name not in COLUMNS]


def _read_texts(path: Path) -> pd.DataFrame:
    """The cells of the rows by line of the file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = {line: [*map(str.strip, row)] for line, row in enumerate(csv.reader(file), 1) if any(row)}
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is not a CSV file in UTF-8: {error}") from None
    header = lines.pop(1, [])
    _check_header(path, header)
    if not lines:
        raise ConfigError(f"{path} has no rows")
    for line, cells in lines.items():
        if len(cells) != len(header):
            raise ConfigError(f"{path}:{line}: {len(cells)} values for {len(header)} columns")
    return pd.DataFrame.from_dict(lines, orient="index", columns=header)


def _check_header(path: Path, header: list[str]) -> None:
    separators = [each for each in (";", "\t", "|") if len(header) == 1 and each in header[0]]
    if separators:
        raise ConfigError(f"{path}:1: columns are separated by {separators[0]!r}; the separator must be ','")
    for name in header:
        if header.count(name) > 1:
            raise ConfigError(f"{path}:1: two columns {name!r}")
        if name not in COLUMNS and (hint := nearest(name, COLUMNS)):
            raise ConfigError(f"{path}:1: unknown column {name!r}{hint}")
    for name in REQUIRED:
        if name not in header:
            raise ConfigError(f"{path}:1: no column {name!r}; needed are {', '.join(REQUIRED)}")


def complete_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run in the steps of which all of its ranks have one.

    Means over ranks and sums over steps would otherwise weigh the ranks by their rows.
    """
    return rows[rows.groupby("step")["rank"].transform("size") == rows["rank"].nunique()]


def separate_waiting(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run, the one communication column beside compute divided into waiting and transfer.

    All ranks leave a collective together, so that the last one to arrive does not wait: its communication is
    the transfer of the step, and what another rank has beyond it is waiting. A column with one value for all
    ranks of a step stays as it is.
    """
    transfer_s = rows["comm_transfer_s"]
    least_s = rows.groupby("step")["comm_transfer_s"].transform("min")
    known = rows[["compute_s", "comm_transfer_s"]].notna().all(axis=None) and rows["comm_wait_s"].isna().all()
    if not known or transfer_s.eq(least_s).all():
        return rows
    return rows.assign(comm_wait_s=transfer_s - least_s, comm_transfer_s=least_s)
