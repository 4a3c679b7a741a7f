"""Content of a report as data: sections of sentences, tables and figures.

The HTML page and its Markdown, JSON, CSV and Parquet twins are all made from sections. Values stay numbers
until they are rendered: a row holds raw values in the unit of its column or an `Estimate`, and
`analysis.units.cell` formats them.

Parts that save a section most of its lines, in `analysis.report.common`:

* `size_table(study, name, caption, columns)`: a row a point, whose values are those of `Column.of`. Columns
  and rows without a value are left out. Getters take the point; `metric("gpu.power_mean_w")` is the mean of a
  figure of `metrics.json` over its repeats. Where values need more than the point, give `items`: the place of
  each row, and what the getters take.
* `item_table(name, caption, columns, items)` (of this module): the same for items that are no points.
* `bars_figure(study, table, title, axis)`: bars by size of the columns of a table that have a colour; like
  the next ones a list, empty without values.
* `points_figure(study, name, title, rows, unit, x, heading)`: estimates over an axis, as that of
  `analysis.draw.style.size_axis`, by curve.
* `step_figure(study, name, title, columns, items_of)`: a line a run by optimizer step, with its data.

A section leaves out what is empty, and is itself left out where nothing remains:

    columns = [Column("power_w", "power of a GPU", "W", get=metric("gpu.power_mean_w"))]
    table = size_table(study, "power", "Means over the ranks and the repeats.", columns)
    return Section("power", "Power", tables=[table])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from matplotlib.figure import Figure as Drawing

from analysis.draw import svg
from analysis.read.run import Run, value_at
from analysis.stats.estimates import Estimate
from analysis.units import Unit as Unit

Value = str | int | float | bool | Estimate | Run | None
"""A run is shown by its name, with a link to its `metrics.json`, or `run.json` without one."""


@dataclass(frozen=True)
class Column:
    """One column of a table: `name` in CSV and Parquet, `heading` on the page, by default the same."""

    name: str
    heading: str = ""
    unit: Unit = ""
    formula_id: str | None = None
    """Metric of `templates/definitions.yaml`, which the heading links to."""
    key: bool = False
    """Whether the column names its row, together with the first one."""
    get: Callable[[Any], Value] | str = ""
    """Value of the item of a row, or its place in the item (`analysis.read.run.value_at`); by default the
    name of the column."""
    colour: str = ""
    """Of its part of the bars of `common.bars_figure`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heading", self.heading or self.name)

    def of(self, item: Any) -> Any:
        """Value in the row of an item."""
        return self.get(item) if callable(self.get) else value_at(item, self.get or self.name)


@dataclass(frozen=True)
class Table:
    """A table; `name` is also the stem of its CSV and Parquet file, unique in the report."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    sources: Sequence[Sequence[Run]] = ()
    """Runs that the numbers of each row come from, one entry for each row; linked in a last column."""
    emphasized: Sequence[int] = ()
    """Indices of rows that stand out: the base, the row of a verdict."""
    places: Sequence[Any] = ()
    """`common.Place` of each row of a table by size."""

    def __bool__(self) -> bool:
        return bool(self.rows)


def item_table(
    name: str, caption: str, columns: Sequence[Column], items: Iterable[Any], **fields: Any
) -> Table:
    """A row for each item, with the values of `Column.of`; `fields` are further ones of the table."""
    return Table(
        name, caption, columns, [[column.of(item) for column in columns] for item in items], **fields
    )


@dataclass(frozen=True)
class Figure:
    """A figure, drawn once: inline SVG on the page, a PNG file beside it, shown in notebooks."""

    name: str
    """Stem of the PNG file, unique in the report."""
    title: str
    drawing: Callable[[], Drawing]
    alt: str
    """The figure in words."""
    data: str | Callable[[], Table] = ""
    """Numbers of the figure for the export: the name of a table of its section, by default its own name, or a
    table that is made on demand."""

    @cached_property
    def drawn(self) -> Drawing:
        return self.drawing()

    @cached_property
    def svg(self) -> str:
        return svg.inline(self.drawn, self.name, self.title, self.alt)


@dataclass(frozen=True)
class Section:
    """One section of the page; `id` is its anchor. Empty tables and sentences are left out, and a section
    without any content is false."""

    id: str
    title: str
    conclusion: str = ""
    """One sentence: what a reader may conclude. Empty where there is nothing to conclude."""
    key: str = field(default="", kw_only=True)
    """Key figure beside the title: `58 %`."""
    paragraphs: Sequence[str] = ()
    code: str = ""
    """Lines to copy, below the text."""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()

    def __post_init__(self) -> None:
        for name in ("paragraphs", "tables"):
            object.__setattr__(self, name, [*filter(None, getattr(self, name))])

    def __bool__(self) -> bool:
        return bool(self.conclusion or self.tables or self.figures)
