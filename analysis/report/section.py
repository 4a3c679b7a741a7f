"""Content of a report as data: sections of sentences, tables and figures.

The HTML page and its Markdown, JSON, CSV and Parquet twins are all made from sections. Values stay numbers
until they are rendered: a row holds raw values in the unit of its column or an `Estimate`, and
`analysis.report.cells` formats them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from matplotlib.figure import Figure as Drawing

from analysis.draw import svg
from analysis.stats.estimates import Estimate

Unit = Literal[
    "",  # text
    "count",  # a whole number
    "number",  # a number without unit, three significant digits
    "s",  # seconds, shown as s, ms or µs
    "span",  # seconds, shown as s, min or h
    "share",  # 0 to 1, shown in percent
    "points",  # a difference of shares, shown in percentage points
    "ratio",  # shown as 2.87×
    "samples/s",
    "tokens/s",
    "B",
    "B/s",
    "FLOP/s",
    "h",
    "loss",  # four digits after the point
    "J",
    "J/sample",
    "W",
    "g",  # shown as kg, g, mg or µg
    "Hz",
    "°C",
    "currency",  # money in the currency of the price list
]


@dataclass(frozen=True)
class RunLink:
    """A run as a table's value; the page links its folder's `metrics.json`, or `run.json` without one."""

    name: str
    path: str
    """Path of the run directory, as in the column `path` of the runs."""


Value = str | int | float | bool | Estimate | RunLink | None


@dataclass(frozen=True)
class Column:
    """One column of a table: `name` in CSV and Parquet, `heading` on the page."""

    name: str
    heading: str
    unit: Unit = ""
    formula_id: str | None = None
    """Metric of `analysis.report.definitions`, which the heading links to."""
    key: bool = False
    """Whether the column names its row, together with the first one."""


@dataclass(frozen=True)
class Table:
    """A table; `name` is also the stem of its CSV and Parquet file, unique in the report."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    sources: Sequence[Sequence[RunLink]] = ()
    """Runs that the numbers of each row come from, one entry for each row; linked in a last column."""
    emphasized: Sequence[int] = ()
    """Indices of rows that stand out: the base, the row of a verdict."""
    most_rows: int | None = None
    """Rows on the page, if fewer than of other tables."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: {len(row)} values for {len(self.columns)} columns")
        if self.sources and len(self.sources) != len(self.rows):
            raise ValueError(f"table {self.name}: {len(self.sources)} sources, {len(self.rows)} rows")


@dataclass(frozen=True)
class Figure:
    """A figure, drawn once: inline SVG on the page, a PNG file beside it, shown in notebooks."""

    name: str
    """Stem of the PNG file, unique in the report."""
    title: str
    drawing: Callable[[], Drawing]
    alt: str
    """The figure in words."""
    data: str | Callable[[], Table] = field(kw_only=True)
    """Numbers of the figure for the export: the name of a table of its section, or a table of its own, which
    is made on demand."""

    @cached_property
    def drawn(self) -> Drawing:
        return self.drawing()

    @cached_property
    def svg(self) -> str:
        return svg.inline(self.drawn, self.name, self.title, self.alt)


@dataclass(frozen=True)
class Section:
    """One section of the page; `id` is its anchor."""

    id: str
    title: str
    conclusion: str
    """One sentence: what a reader may conclude. Empty where there is nothing to conclude."""
    key: str = field(default="", kw_only=True)
    """Key figure beside the title: `58 %`."""
    paragraphs: Sequence[str] = ()
    code: str = ""
    """Lines to copy, below the text."""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
