"""Write the tables of a report as CSV and Parquet files, with raw numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.read.frames import table as table_of_runs
from analysis.read.run import Run
from analysis.report.section import Column, Section, Table
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import Unit
from disttrain.records.json_files import read_json_or_none, write_bytes, write_json

INDEX = "tables.json"
ALL_RUNS = "all_runs"
_ENDINGS: dict[Unit, str] = {
    "s": "s", "span": "s", "samples/s": "samples_per_s", "tokens/s": "tokens_per_s", "B": "bytes",
    "B/s": "bytes_per_s", "FLOP/s": "flops_per_s", "h": "hours", "J": "j", "J/sample": "j_per_sample",
    "W": "w", "g": "g", "Hz": "hz", "°C": "c",
}  # fmt: skip
"""Ending of the name of a column that states its unit; the other units have no dimension."""


def write_tables(study: Study, sections: Sequence[Section], folder: Path, kind: str) -> None:
    """Write each table of the sections, the data of each figure, and the table of all runs as files.

    `kind` is `csv` or `parquet`. `tables.json` lists the files with their captions, the figures that show
    their numbers, and the unit and heading of each column. Files that an earlier `tables.json` in the folder
    lists and this report does not have are deleted.

    Raises:
        OSError: a file cannot be written.
    """
    marks = {"emulated": study.emulated, "ingested": any(run.ingested for run in study.included)}
    tables, figures = exported(sections)
    origin = {mark: True for mark, holds in marks.items() if holds}  # a file shows it by itself
    frames = {name: frame(table).assign(**origin) for name, table in tables.items()}
    frames[ALL_RUNS] = table_of_runs(study.runs)
    earlier = read_json_or_none(folder / INDEX) or {}
    for name, rows in frames.items():
        content = rows.to_csv(index=False).encode() if kind == "csv" else rows.to_parquet(index=False)
        write_bytes(folder / f"{name}.{kind}", content, durable=False)
    tables[ALL_RUNS] = Table(ALL_RUNS, "All runs, one row each, with their swept keys.", [], [])
    listed = [
        {
            "file": f"{name}.{kind}",
            "caption": table.caption,
            "figures": figures.get(name, []),
            "columns": [
                {
                    "name": column_name(each),
                    "heading": each.heading,
                    "unit": each.unit,
                    "formula": each.formula_id,
                }
                for each in table.columns
            ],
        }
        for name, table in tables.items()
    ]
    for file in {each["file"] for each in earlier.get("tables", [])} - {each["file"] for each in listed}:
        (folder / Path(file).name).unlink(missing_ok=True)
    write_json(folder / INDEX, {"schema_version": 1, **marks, "tables": listed})


def exported(sections: Sequence[Section]) -> tuple[dict[str, Table], dict[str, list[str]]]:
    """Tables of the page and data of its figures by name, and the figures that show them."""
    tables = {table.name: table for section in sections for table in section.tables}
    figures: dict[str, list[str]] = {}
    for figure in (figure for section in sections for figure in section.figures):
        data = figure.data() if callable(figure.data) else tables[figure.data or figure.name]
        tables[data.name] = data
        figures.setdefault(data.name, []).append(figure.name)
    return tables, figures


def column_name(column: Column) -> str:
    """Name of a column in a file: `name`, with its unit unless the name ends with the unit."""
    ending = _ENDINGS.get(column.unit)
    stated = ending is None or f"_{column.name}".endswith((f"_{ending}", "_seconds"))
    return column.name if stated else f"{column.name}_{ending}"


def frame(table: Table) -> pd.DataFrame:
    """The values of a table. An estimate is five columns, and a run has its path in a second one."""
    columns: dict[str, pd.Series[Any]] = {}
    for at, column in enumerate(table.columns):
        values = [row[at] for row in table.rows]
        plain = [value.value if isinstance(value, Estimate) else value for value in values]
        name = column_name(column)
        columns[name] = _typed(plain, number=column.unit not in ("", "count"))
        for kind, parts in ((Run, ("path",)), (Estimate, ("low", "high", "repeats", "basis"))):
            for part in parts if any(isinstance(value, kind) for value in values) else ():
                columns[f"{name}_{part}"] = _typed([getattr(value, part, None) for value in values])
    if table.sources:
        columns["sources"] = _typed([" ".join(link.path for link in links) for links in table.sources])
    return pd.DataFrame(columns)


def _typed(values: Sequence[Any], *, number: bool = False) -> pd.Series[Any]:
    """Values of one type: text where numbers and texts are mixed."""
    found = pd.Series(values, dtype="Float64") if number else pd.Series(values, dtype=object).convert_dtypes()
    return found.map(str, na_action="ignore") if found.dtype == object else found
