"""Write the tables of a report as CSV and Parquet files, with raw numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from analysis.read.run_table import table
from analysis.report.section import Column, RunLink, Section, Table, Unit
from analysis.stats.estimates import Estimate
from analysis.study import Study
from disttrain.records.json_files import read_json_or_none, write_bytes, write_json

INDEX = "tables.json"
ALL_RUNS = "all_runs"
_ENDINGS: dict[Unit, tuple[str, ...]] = {
    "s": ("s", "seconds"),
    "span": ("s", "seconds"),
    "samples/s": ("samples_per_s",),
    "tokens/s": ("tokens_per_s",),
    "B": ("bytes",),
    "B/s": ("bytes_per_s",),
    "FLOP/s": ("flops_per_s",),
    "h": ("hours",),
    "J": ("j",),
    "J/sample": ("j_per_sample",),
    "W": ("w",),
    "g": ("g",),
    "Hz": ("hz",),
    "°C": ("c",),
}
"""Endings of column names that state the unit, the one to add first. The other units have no dimension."""


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
    earlier = read_json_or_none(folder / INDEX) or {}
    written = {name: arrow_table(table, marks) for name, table in tables.items()}
    written[ALL_RUNS] = pa.Table.from_pandas(table(study.runs), preserve_index=False).replace_schema_metadata(
        None
    )
    files = {name: f"{name}.{kind}" for name in written}
    for name, content in written.items():
        write_bytes(folder / files[name], _WRITERS[kind](content), durable=False)
    for each in earlier.get("tables", []):
        if each["file"] not in files.values() and Path(each["file"]).name == each["file"]:
            (folder / each["file"]).unlink(missing_ok=True)
    captions = {name: table.caption for name, table in tables.items()}
    captions[ALL_RUNS] = "All runs, one row each, with their swept keys."
    listed = [
        {
            "file": file,
            "caption": captions[name],
            "figures": figures.get(name, []),
            "columns": _described(tables.get(name)),
        }
        for name, file in files.items()
    ]
    write_json(folder / INDEX, {"schema_version": 1, **marks, "tables": listed})


def exported(sections: Sequence[Section]) -> tuple[dict[str, Table], dict[str, list[str]]]:
    """Tables of the page and data of its figures by name, and the figures that each of them has numbers of.

    Raises:
        ValueError: two different tables have one name, or a figure names a table that its section lacks.
    """
    tables = {table.name: table for section in sections for table in section.tables}
    figures: dict[str, list[str]] = {}
    for section in sections:
        own = {table.name: table for table in section.tables}
        for figure in section.figures:
            data = own.get(figure.data) if isinstance(figure.data, str) else figure.data()
            if data is None:
                raise ValueError(f"figure {figure.name}: section {section.id} has no table {figure.data!r}")
            if tables.setdefault(data.name, data) != data:
                raise ValueError(f"figure {figure.name}: another table is called {data.name!r}")
            figures.setdefault(data.name, []).append(figure.name)
    return tables, figures


def column_name(column: Column) -> str:
    """Name of a column in a file: `name`, with its unit unless the name ends with the unit."""
    endings = _ENDINGS.get(column.unit, ())
    stated = not endings or any(column.name == end or column.name.endswith(f"_{end}") for end in endings)
    return column.name if stated else f"{column.name}_{endings[0]}"


def arrow_table(table: Table, marks: Mapping[str, bool] = MappingProxyType({})) -> pa.Table:
    """The values of a table. An estimate is five columns, and a run has its path in a second one.

    Each of `marks` that holds is a column of its own, so that a file shows its origin by itself.
    """
    columns: dict[str, list[Any]] = {}
    units: dict[str, Unit] = {}
    for index, column in enumerate(table.columns):
        name = column_name(column)
        values = [row[index] for row in table.rows]
        for part, found in _parts(name, values).items():
            columns[part] = found
            units[part] = column.unit if part == name else ""
    if table.sources:
        columns["sources"] = [" ".join(link.path for link in links) for links in table.sources]
    columns |= {name: [True] * len(table.rows) for name, holds in marks.items() if holds}
    return pa.table({name: _array(values, units.get(name, "")) for name, values in columns.items()})


def _parts(name: str, values: Sequence[Any]) -> dict[str, list[Any]]:
    """Columns for the values of one: numbers and texts stay, estimates and runs are taken apart."""
    parts = {name: [_plain(value) for value in values]}
    if any(isinstance(value, RunLink) for value in values):
        parts[f"{name}_path"] = [value.path if isinstance(value, RunLink) else None for value in values]
    if any(isinstance(value, Estimate) for value in values):
        for part in ("low", "high", "repeats", "basis"):
            parts[f"{name}_{part}"] = [
                getattr(value, part) if isinstance(value, Estimate) else None for value in values
            ]
    return parts


def _plain(value: Any) -> Any:
    if isinstance(value, RunLink):
        return value.name
    if isinstance(value, Estimate):
        return value.value
    return value.item() if hasattr(value, "item") else value


def _array(values: Sequence[Any], unit: Unit) -> pa.Array:
    """Values of one type: that of all values, or text where numbers and texts are mixed."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int}:
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and (kinds or unit):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _described(table: Table | None) -> list[dict[str, str | None]]:
    """Name, heading, unit and formula of each column; none for the table of all runs."""
    if table is None:
        return []
    return [
        {
            "name": column_name(column),
            "heading": column.heading,
            "unit": "s" if column.unit == "span" else column.unit,
            "formula": column.formula_id,
        }
        for column in table.columns
    ]


def _csv(table: pa.Table) -> bytes:
    """Empty for null, `true` and `false`, and floats with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row])
    return text.getvalue().encode()


def _parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()


_WRITERS: dict[str, Callable[[pa.Table], bytes]] = {"csv": _csv, "parquet": _parquet}
