"""Parts that several sections share: names and colours of points, tables and figures by size and by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from analysis.draw.bars import Row, Segment, bars
from analysis.draw.points import Dot, Line, extent, lines, points
from analysis.draw.style import DASHES, Axis, LegendItem, curve_colour, size_colour, value_axis
from analysis.read.run import Run
from analysis.report.section import Column, Figure, Table
from analysis.results.curves import Curve, Point
from analysis.results.curves import metric as metric
from analysis.results.curves import of_steps as of_steps
from analysis.results.curves import over_repeats as over_repeats
from analysis.study import Study
from analysis.units import Unit, cell, scale, text

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Items = Sequence[tuple[Curve, Point, Any]]
"""What the getters of columns take, with its point."""

_MOST_VALUES = 120
"""Points of the line of a run."""
_MOST_LINES = 60
"""Runs of a figure with one line for each; of more, the first repeat of each size is drawn."""


def kept(*parts: T | None) -> list[T]:
    """Tables, figures or sentences without None and empty ones."""
    return [part for part in parts if part]


def sentence(parts: Iterable[str]) -> str:
    """Non-empty parts, separated by spaces."""
    return " ".join(kept(*parts))


def all_points(study: Study) -> list[tuple[Curve, Point]]:
    """Points of all curves, smallest first within a curve."""
    return [(curve, point) for curve in study.curves for point in curve.points]


def coloured_points(study: Study) -> list[tuple[Curve, Point, str]]:
    """Points with their colour: by size on a single curve, else by curve."""
    curves = study.curves
    if len(curves) == 1:
        points = curves[0].points
        return [(curves[0], point, size_colour(i, len(points))) for i, point in enumerate(points)]
    return [(curve, point, curve_colour(i)) for i, curve in enumerate(curves) for point in curve.points]


def point_name(study: Study, curve: Curve, point: Point) -> str:
    """`16 GPUs`, with the label of the curve if there are several."""
    return curve.name(point) if len(study.curves) == 1 else f"{curve.label}, {curve.name(point)}"


def size_columns(study: Study) -> list[Column]:
    """Columns that name a point; their getters take its curve and the point."""
    curve = Column("curve", "configuration", key=True, get=lambda at: at[0].label)
    size = Column("size", unit_name(study.curves), "count", key=True, get=lambda at: at[1].size)
    shape = Column("shape", "shape", key=True, get=lambda at: at[1].shape)
    columns = [curve, size] if len(study.curves) > 1 else [size]
    return [*columns, shape] if has_shapes(study) else columns


def unit_name(curves: Iterable[Curve]) -> str:
    """Heading of a column, or label of an axis, of sizes."""
    units = {curve.unit for curve in curves}
    return f"{units.pop()}s" if len(units) == 1 else "GPUs or ranks"


def has_shapes(study: Study) -> bool:
    """Whether points of one size differ in their shape."""
    return any(len(curve.line) < len(curve.points) for curve in study.curves)


def point_table(
    study: Study, name: str, caption: str, columns: Sequence[Column], items: Items | None = None
) -> Table | None:
    """A row for each of `items`, by default for each point of `study`; see `analysis.report.section`."""
    rows = []
    for curve, point, item in _items(study, items):
        values = [column.of(item) for column in columns]
        if any(value is not None for value in values):
            rows.append((curve, point, values))
    if not rows:
        return None
    sizes = size_columns(study)
    known = [at for at, _ in enumerate(columns) if any(row[2][at] is not None for row in rows)]
    lines = [[*(column.of(row) for column in sizes), *(row[2][at] for at in known)] for row in rows]
    shown = [*sizes, *(columns[at] for at in known)]
    return Table(name, caption, shown, lines, [point.runs for _, point, _ in rows])


def _items(study: Study, items: Items | None) -> Items:
    return [(*at, at[1]) for at in all_points(study)] if items is None else items


def stacked_figure(
    study: Study, name: str, title: str, axis: str, columns: Sequence[Column], items: Items | None = None
) -> Figure | None:
    """Bars by size, of the columns that have a colour after one another; None without values.

    Args:
        name: also of the table that has the columns.
        axis: what is measured, without the unit.
        items: as for `point_table`.
    """
    parts, rows = [column for column in columns if column.colour], []
    for curve, point, item in _items(study, items):
        known = {part: mean.value for part in parts if (mean := part.of(item)) and mean.value}
        if known:
            rows.append((curve, point, known))
    if not rows:
        return None
    unit, longest = parts[0].unit, max(sum(known.values()) for *_, known in rows)
    size, suffix = scale(unit, longest)
    drawn: list[Row] = []
    heading: Curve | None = None
    for curve, point, known in rows:
        if len(study.curves) > 1 and curve is not heading:
            drawn.append(Row(curve.label))
            heading = curve
        segments, end = [], 0.0
        for part, value in known.items():
            label = f"{point_name(study, curve, point)}: {part.heading} {text(value, unit)}"
            segments.append(Segment(end, end := end + value / size, part.colour, label))
        drawn.append(Row(curve.name(point), segments, text(sum(known.values()), unit)))
    x = Axis(f"{axis} ({suffix.strip()})", 0.0, longest / size)
    shown = [part for part in parts if any(part in known for *_, known in rows)]
    legend = [LegendItem(part.heading, part.colour) for part in shown] if len(shown) > 1 else []
    alt = "; ".join(segment.title for row in drawn for segment in row.segments)
    return Figure(name, title, partial(bars, drawn, x, legend, emulated=study.emulated), alt, data=name)


def points_figure(
    study: Study,
    name: str,
    title: str,
    rows: Iterable[Sequence[Any]],
    unit: Unit,
    x: Axis,
    heading: str,
    data: str,
    *,
    levels: Iterable[float] = (),
    log: bool = False,
    **options: Any,
) -> Figure:
    """Estimates with tooltips; the vertical axis has them and `levels`, and intervals that do not dwarf them.

    Args:
        rows: curve, name and place on the horizontal axis of each point, its estimate, which may be None, and
            maybe the text and whether it is pale of `analysis.draw.points.Dot`.
        heading: of the vertical axis.
        options: guides and band of `analysis.draw.points.points`.
    """
    dots = [
        Dot(curve, at, estimate, f"{curve}, {place}: {cell(estimate, unit).line}", *style)
        for curve, place, at, estimate, *style in rows
        if estimate
    ]
    ends = [*levels, *extent([dot.estimate for dot in dots])]
    y = value_axis(heading, min(ends), max(ends), log=log, form=_form(unit))
    drawing = partial(points, dots, x, y, emulated=study.emulated, **options)
    return Figure(name, title, drawing, "; ".join(dot.title for dot in dots), data=data)


def _form(unit: Unit) -> Callable[[float], str]:
    """Texts of the ticks of an axis, whose heading has the unit of other values."""
    if unit in ("ratio", "B/s", "share"):
        return partial(text, unit=unit, digits=0 if unit == "share" else None)
    return "{:,.6g}".format


def step_figure(
    study: Study,
    name: str,
    title: str,
    columns: Sequence[Column],
    rows_of: Callable[[Run], Rows],
    *,
    rings: Callable[[Sequence[Any]], bool] = lambda row: False,
    log: bool = False,
) -> Figure | None:
    """A line for each run by optimizer step, with its table `NAME_by_step`; None without values.

    Of many runs, the first repeat of each size is drawn. The colour names the size of a single curve; of
    several, the colour names the curve and the dashes the size.

    Args:
        columns: of the table: the step, the value that is drawn, and others.
        rows_of: values of the columns in one run.
        rings: whether a row is drawn as a ring in place of a point of the line.
    """
    repeats = None if sum(len(point.runs) for _, point in all_points(study)) <= _MOST_LINES else 1
    runs = [
        (curve, point, colour, run, rows)
        for curve, point, colour in coloured_points(study)
        for run in point.runs[:repeats]
        if (rows := rows_of(run))
    ]
    several, sizes = len(study.curves) > 1, sorted({point.size for _, point in all_points(study)})
    drawn, legend = [], {}
    for curve, point, colour, run, rows in runs[:_MOST_LINES]:
        size, key = curve.name(point), f"{curve.sweep}/{run.name}"
        dashes = DASHES[sizes.index(point.size) % len(DASHES)] if several else "-"
        label = curve.label if several else size
        legend[label] = LegendItem(label, colour, "-", label)
        legend |= {size: LegendItem(size, "ink", dashes)} if several else {}
        for ringed in (False, True):
            part = np.array([row[:2] for row in rows if rings(row) == ringed], float).reshape(-1, 2)
            if len(part):
                part = part[np.unique(np.linspace(0, len(part) - 1, _MOST_VALUES, dtype=int))]
            steps, values = part.T
            values = np.where(values > (0 if log else -np.inf), values, np.nan)
            tooltip = f"{run.name}, {point_name(study, curve, point)}"
            if not np.isnan(values).all():
                drawn.append(Line(steps, values, colour, tooltip, key, dashes, ringed))
    if not drawn:
        return None
    every, value = np.concatenate([line.ys for line in drawn]), columns[1]
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    entries = sorted(legend.values(), key=lambda item: item.colour == "ink")
    x = Axis("optimizer step", 0.0, max(line.xs[-1] for line in drawn))
    y = value_axis(value.heading, low, high, log=log, form=_form(value.unit))
    return Figure(
        name,
        title,
        partial(lines, drawn, x, y, entries, emulated=study.emulated),
        f"{title} by optimizer step: {text(low, value.unit)} to {text(high, value.unit)}",
        data=partial(run_table, f"{name}_by_step", f"{title} by step.", columns, [each[3:] for each in runs]),
    )


def run_columns(study: Study) -> list[Column]:
    """Columns that name a run; of several sweeps, also its sweep."""
    run = Column("run", "run", get=lambda run: run)
    return [run, Column("sweep", "sweep", key=True)] if len(study.sweeps) > 1 else [run]


def run_table(name: str, caption: str, columns: Sequence[Column], runs: Iterable[tuple[Run, Rows]]) -> Table:
    """Rows of runs, which begin with the sweep and the run."""
    names = [Column("sweep", "sweep"), Column("run", "run")]
    rows = [[run.sweep, run.name, *row] for run, rows in runs for row in rows]
    return Table(name, caption, [*names, *columns], rows)
