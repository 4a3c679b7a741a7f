"""What sections are made of, in one import: names and colours of sizes, tables and figures by size and by
step, and the parts of `section` and `sentences`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from analysis.draw.charts import Dot, Line, Row, Segment, bars, extent, lines, points
from analysis.draw.style import DASHES, Axis, LegendItem, curve_colour, size_colour, value_axis
from analysis.read.run import Run
from analysis.report.section import Column, Figure, Table
from analysis.report.section import Section as Section
from analysis.report.section import item_table as item_table
from analysis.report.sentences import say as say
from analysis.results.curves import Curve, Point
from analysis.results.curves import metric as metric
from analysis.results.curves import of_steps as of_steps
from analysis.results.curves import over_repeats as over_repeats
from analysis.study import Study
from analysis.units import Unit, cell, text

Rows = Sequence[Sequence[Any]]
_MOST_VALUES = 120
"""Points of the line of a run."""
_MOST_LINES = 60
"""Runs of a figure with one line for each; of more, the first repeat of each size is drawn."""

THROUGHPUT = Column("samples_per_s", "throughput", "samples/s", "throughput")
STEP = Column("step_s", "step", "s", "step-time")


class Place(NamedTuple):
    """One size of a curve."""

    curve: Curve
    point: Point
    name: str
    """`16 GPUs`, with the label of the curve if there are several."""
    colour: str
    """By size on a single curve, else by curve."""


def places(study: Study) -> list[Place]:
    """Sizes of all curves, smallest first within a curve."""
    several = len(study.curves) > 1
    return [
        Place(
            curve,
            point,
            f"{curve.label}, {curve.name(point)}" if several else curve.name(point),
            curve_colour(index) if several else size_colour(at, len(curve.points)),
        )
        for index, curve in enumerate(study.curves)
        for at, point in enumerate(curve.points)
    ]


def place_of(study: Study, point: Point) -> Place:
    return next(place for place in places(study) if place.point is point)


def leading(study: Study) -> Place:
    """The largest size of the leading curve."""
    return place_of(study, study.leading_curve.points[-1])


def size_columns(study: Study) -> list[Column]:
    """Columns that name a place."""
    curve = Column("curve", "configuration", key=True, get="curve.label")
    size = Column("size", unit_name(study.curves), "count", key=True, get="point.size")
    shape = Column("shape", key=True, get="point.shape")
    columns = [curve, size] if len(study.curves) > 1 else [size]
    return [*columns, shape] if has_shapes(study) else columns


def unit_name(curves: Iterable[Curve]) -> str:
    """Heading of a column, or label of an axis, of sizes."""
    units = {curve.unit for curve in curves}
    return f"{units.pop()}s" if len(units) == 1 else "GPUs or ranks"


def has_shapes(study: Study) -> bool:
    """Whether points of one size differ in their shape."""
    return any(len(curve.line) < len(curve.points) for curve in study.curves)


def size_table(
    study: Study,
    name: str,
    caption: str,
    columns: Sequence[Column],
    items: Iterable[tuple[Place, Any]] | None = None,
) -> Table:
    """A row for each of `items`, by default for each point of `study`; see `analysis.report.section`."""
    every = [(place, place.point) for place in places(study)] if items is None else items
    rows = [(place, [column.of(item) for column in columns]) for place, item in every]
    rows = [row for row in rows if any(value is not None for value in row[1])]
    known = [at for at, _ in enumerate(columns) if any(values[at] is not None for _, values in rows)]
    sizes = size_columns(study)
    return Table(
        name,
        caption,
        [*sizes, *(columns[at] for at in known)],
        [[*(column.of(place) for column in sizes), *(values[at] for at in known)] for place, values in rows],
        [place.point.runs for place, _ in rows],
        places=[place for place, _ in rows],
    )


def bars_figure(study: Study, table: Table, title: str, axis: str) -> list[Figure]:
    """Bars by size, of the columns of a table that have a colour after one another; `axis` is what is
    measured, without the unit."""
    parts = {column: at for at, column in enumerate(table.columns) if column.colour}
    rows: list[Row] = []
    for place, values in zip(table.places, table.rows, strict=True):
        segments, end = list[Segment](), 0.0
        for part, at in parts.items():
            if length := getattr(values[at], "value", 0.0):
                label = f"{place.name}: {part.heading} {text(length, part.unit)}"
                segments.append(Segment(end, end := end + length, part.colour, label))
        if segments and len(study.curves) > 1 and place.curve.label not in {row.name for row in rows}:
            rows.append(Row(place.curve.label))
        if segments:
            rows.append(Row(place.curve.name(place.point), segments, text(end, part.unit)))
    if not rows:
        return []
    titles = {segment.title: segment.colour for row in rows for segment in row.segments}
    legend = [LegendItem(part.heading, part.colour) for part in parts if part.colour in titles.values()]
    entries = legend if len(legend) > 1 else []
    drawing = partial(bars, rows, axis, part.unit, entries, emulated=study.emulated)
    return [Figure(table.name, title, drawing, "; ".join(titles))]


def points_figure(
    study: Study,
    name: str,
    title: str,
    rows: Iterable[Sequence[Any]],
    unit: Unit,
    x: Axis,
    heading: str,
    data: str = "",
    *,
    levels: Iterable[float] = (),
    log: bool = False,
    **options: Any,
) -> Figure:
    """Estimates with tooltips; the vertical axis has them and `levels`, and intervals that do not dwarf them.

    Args:
        rows: curve, name and place on the horizontal axis of each point, its estimate, which may be None, and
            maybe the other fields of `analysis.draw.charts.Dot`.
        heading: of the vertical axis.
        options: guides and band of `analysis.draw.points.points`.
    """
    dots = [
        Dot(curve, at, estimate, f"{curve}, {place}: {cell(estimate, unit).line}", *style)
        for curve, place, at, estimate, *style in rows
        if estimate
    ]
    ends = [*levels, *extent([dot.estimate for dot in dots])]
    y = value_axis(heading, min(ends), max(ends), unit, log=log)
    drawing = partial(points, dots, x, y, emulated=study.emulated, **options)
    return Figure(name, title, drawing, "; ".join(dot.title for dot in dots), data)


def step_figure(
    study: Study,
    name: str,
    title: str,
    columns: Sequence[Column],
    items_of: Callable[[Run], Iterable[Any]],
    *,
    rings: str = "",
    log: bool = False,
) -> list[Figure]:
    """A line for each run by optimizer step, with its table `NAME_by_step`.

    Of many runs, the first repeat of each size is drawn. The colour names the size of a single curve; of
    several, the colour names the curve and the dashes the size.

    Columns are those of the table: the value that is drawn, and others. Each item of a run has its step, and
    those whose last value is `rings` are rings in place of points of the line.
    """
    columns = [Column("step", "step", "count"), *columns]
    shown = places(study)
    repeats = None if sum(len(place.point.runs) for place in shown) <= _MOST_LINES else 1
    runs = [
        (place, run, rows)
        for place in shown
        for run in place.point.runs[:repeats]
        if (rows := [[column.of(item) for column in columns] for item in items_of(run)])
    ]
    sizes, drawn, legend = sorted({place.point.size for place in shown}), [], {}
    for place, run, rows in runs[:_MOST_LINES]:
        size = place.curve.name(place.point)
        label, dashes = size, DASHES[0]
        if len(study.curves) > 1:
            label, dashes = place.curve.label, DASHES[sizes.index(place.point.size) % len(DASHES)]
            legend[size] = LegendItem(size, "ink", dashes)
        legend[label] = LegendItem(label, place.colour, "-")
        for ringed in (False, True):
            part = np.array([row[:2] for row in rows if (row[-1] == rings) == ringed], float).reshape(-1, 2)
            if len(part):
                part = part[np.unique(np.linspace(0, len(part) - 1, _MOST_VALUES, dtype=int))]
            steps, values = part[:, 0], np.where(part[:, 1] > (0 if log else -np.inf), part[:, 1], np.nan)
            if not np.isnan(values).all():
                tooltip, key = f"{run.name}, {place.name}", f"{run.sweep}/{run.name}"
                drawn.append(Line(steps, values, place.colour, tooltip, key, dashes, ringed))
    if not drawn:
        return []
    every, value = np.concatenate([line.ys for line in drawn]), columns[1]
    low, high = np.nanmin(every), np.nanmax(every)
    entries = sorted(legend.values(), key=lambda item: item.colour == "ink")
    x = Axis("optimizer step", 0.0, max(line.xs[-1] for line in drawn))
    y = value_axis(value.heading, low, high, value.unit, log=log)
    return [
        Figure(
            name,
            title,
            partial(lines, drawn, x, y, entries, emulated=study.emulated),
            f"{title} by optimizer step: {text(low, value.unit)} to {text(high, value.unit)}",
            partial(run_table, f"{name}_by_step", f"{title} by step.", columns, [each[1:] for each in runs]),
        )
    ]


def run_columns(study: Study) -> list[Column]:
    """Columns that name a run; of several sweeps, also its sweep."""
    run, sweep = Column("run", get=lambda run: run), Column("sweep", key=True)
    return [run, sweep] if len(study.sweeps) > 1 else [run]


def run_table(name: str, caption: str, columns: Sequence[Column], runs: Iterable[tuple[Run, Rows]]) -> Table:
    """Rows of runs, which begin with the sweep and the run."""
    names = [Column("sweep"), Column("run")]
    rows = [[run.sweep, run.name, *row] for run, rows in runs for row in rows]
    return Table(name, caption, [*names, *columns], rows)
