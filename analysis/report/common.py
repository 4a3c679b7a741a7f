"""Parts that several sections share: names of points, their colours, links to their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.draw.bars import Row, Segment, bars, stacked
from analysis.draw.points import Line, lines
from analysis.draw.style import DASHES, Axis, LegendItem, curve_colour, size_colour
from analysis.report.section import Column, Figure, RunLink, Table, Value
from analysis.results.curves import Curve, Point
from analysis.stats.estimates import CONFIDENCE, Estimate, not_stationary, share_mean
from analysis.study import Study
from analysis.units import percent, seconds, time_scale

_MOST_VALUES = 120
"""Points of the line of a run."""
MOST_LINES = 60
"""Runs of a figure with one line for each; of more, the first repeat of each size is drawn."""


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


def interval_basis(estimates: Iterable[Estimate | None]) -> str:
    """Intervals that these estimates have, as the end of `with ...`: `95 % intervals over repeats`."""
    known = [each for each in estimates if each is not None]
    if any(each.low is not None for each in known):
        return f"{percent(CONFIDENCE, 0)} intervals over repeats"
    reasons = {"not stationary" if each.basis == "not stationary" else "one repeat" for each in known}
    return f"no interval: {' or '.join(sorted(reasons))}" if known else "no interval"


def size_columns(study: Study) -> list[Column]:
    """Columns that name a point."""
    heads = [Column("curve", "configuration", key=True)] if len(study.curves) > 1 else []
    shapes = [Column("shape", "nodes x per node", key=True)] if has_shapes(study) else []
    return [*heads, Column("size", unit_name(study.curves), "count", key=True), *shapes]


def size_values(study: Study, curve: Curve, point: Point) -> list[Value]:
    """Values of `size_columns`."""
    shape = [point.shape] if has_shapes(study) else []
    return [*([curve.label] if len(study.curves) > 1 else []), point.size, *shape]


def unit_name(curves: Iterable[Curve]) -> str:
    """Heading of a column, or label of an axis, of sizes."""
    units = {curve.unit for curve in curves}
    return f"{units.pop()}s" if len(units) == 1 else "GPUs or ranks"


def has_shapes(study: Study) -> bool:
    """Whether points of one size differ in their shape."""
    return any(len(curve.line) < len(curve.points) for curve in study.curves)


def sources(study: Study, curve: Curve, point: Point) -> list[RunLink]:
    """The repeats of a point."""
    return [RunLink(row["run"], row["path"]) for row in study.runs_of(curve, point)]


def run_legend(study: Study) -> list[LegendItem]:
    """Legend of `run_lines`."""
    colours = {
        curve.name(point) if len(study.curves) == 1 else curve.label: colour
        for curve, point, colour in coloured_points(study)
    }
    dashes = _dashes_by_size(study) if len(study.curves) > 1 else {}
    return [
        *(LegendItem(name, colour, True, key=name) for name, colour in colours.items()),
        *(LegendItem(name, "ink", True, pattern) for name, pattern in dashes.items()),
    ]


def _dashes_by_size(study: Study) -> dict[str, tuple[int, ...]]:
    """Dashes by name of each size, smallest first; the smallest has none."""
    sizes = sorted((point.size, curve.name(point)) for curve, point in all_points(study))
    names = dict.fromkeys(name for _, name in sizes)
    return {name: DASHES[index % len(DASHES)] for index, name in enumerate(names)}


def run_lines(study: Study, frame: pd.DataFrame, column: str, *, rings: bool = False) -> list[Line]:
    """The values of `column` by `step`: a line for each run, or for the first of each size of many.

    The colour names the size of a single curve; of several, the colour names the curve and the dashes the
    size.
    """
    by_run = {key: rows for key, rows in frame.groupby(["sweep", "run"])}
    first_only = len(by_run) > MOST_LINES
    dashes = _dashes_by_size(study)
    lines = []
    for curve, point, colour in coloured_points(study):
        for run in point.runs[: 1 if first_only else None]:
            if (rows := by_run.get((curve.sweep, run))) is not None:
                rows = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, _MOST_VALUES).astype(int))]
                title = f"{run}, {point_name(study, curve, point)}"
                of_size = dashes[curve.name(point)] if len(study.curves) > 1 else ()
                values = list(rows["step"]), list(rows[column])
                lines.append(Line(*values, colour, title, run_key(curve.sweep, run), of_size, rings))
    return lines[:MOST_LINES]


def step_figure(
    study: Study, name: str, title: str, runs: list[Line], y: Axis, extent: str, data: Callable[[], Table]
) -> Figure:
    """Lines of runs by optimizer step; `extent` is the range of their values in words."""
    x = Axis("optimizer step", 0.0, max(max(run.xs) for run in runs))
    drawing = partial(lines, runs, x, y, run_legend(study), emulated=study.emulated)
    return Figure(name, title, drawing, f"{title} by optimizer step: {extent}", data=data)


def grouped_rows(study: Study, rows: Sequence[tuple[Curve, Point, Sequence[Segment], str]]) -> list[Row]:
    """Rows of bars named by size; of several curves, under a heading for each."""
    found: list[Row] = []
    heading: Curve | None = None
    for curve, point, segments, text in rows:
        if len(study.curves) > 1 and curve is not heading:
            found.append(Row(curve.label))
            heading = curve
        found.append(Row(curve.name(point), segments, text))
    return found


def stacked_figure(
    study: Study,
    name: str,
    title: str,
    axis: str,
    kinds: Mapping[str, tuple[str, str]],
    rows: Sequence[tuple[Curve, Point, Mapping[str, float]]],
) -> Figure:
    """Stacked bars of seconds by size, the data of the table `name`.

    Args:
        axis: what is measured, without the unit.
        kinds: label and colour by name of a part, in the order of the bar.
        rows: seconds of each part at each point.
    """
    longest = max(sum(parts.values()) for *_, parts in rows)
    factor, unit = time_scale(longest)
    lines = []
    for curve, point, parts in rows:
        place, whole_s = point_name(study, curve, point), sum(parts.values())
        segments = [
            (
                length_s * factor,
                kinds[kind][1],
                f"{place}: {kinds[kind][0]} {seconds(length_s)} ({percent(length_s / (whole_s or 1))})",
            )
            for kind, length_s in parts.items()
        ]
        lines.append((curve, point, stacked(segments), seconds(whole_s)))
    drawing = partial(
        bars,
        grouped_rows(study, lines),
        Axis(f"{axis} ({unit})", 0.0, longest * factor),
        [LegendItem(*each) for each in kinds.values()],
        emulated=study.emulated,
    )
    alt = "; ".join(segment.title for *_, segments, _ in lines for segment in segments)
    return Figure(name, title, drawing, alt, data=name)


def size_table(
    study: Study,
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[Curve, Point, Sequence[Value]]],
) -> Table:
    """A table whose rows begin with the size of a point; columns without a value are left out."""
    lines = [*rows]
    kept = [at for at in range(len(columns)) if any(values[at] is not None for *_, values in lines)]
    return Table(
        name,
        caption,
        [*size_columns(study), *(columns[at] for at in kept)],
        [[*size_values(study, curve, point), *(row[at] for at in kept)] for curve, point, row in lines],
        [sources(study, curve, point) for curve, point, _ in lines],
    )


def frame_table(name: str, caption: str, columns: Sequence[Column], frame: pd.DataFrame) -> Table:
    """A table of the columns of a frame that have these names; missing numbers are None."""
    chosen = frame[[column.name for column in columns]].astype(object)
    rows = chosen.where(chosen.notna(), None).to_numpy().tolist()
    return Table(name, caption, columns, rows)


RUN_COLUMNS = (Column("sweep", "sweep"), Column("run", "run"))
"""Columns that name a run in the data of a figure."""


def is_measured(row: Mapping[Any, Any]) -> bool:
    """Whether this program measured the run of a row, not another program (`ingest`)."""
    return bool(pd.isna(row["ingested"]))


def repeat_advice(rows: Iterable[Mapping[Any, Any]]) -> str:
    """The end of a sentence on these runs, which have one repeat."""
    if any(is_measured(row) for row in rows):
        return "run all at least 3 times (--repeats 3)"
    return "add two launches of the same configuration to the table, each with its own run and repeat"


def run_key(sweep: str, run: str) -> str:
    """Key by which all marks of a run are highlighted together."""
    return f"{sweep}/{run}"


def over_repeats(point: Point, values: Iterable[float | None]) -> Estimate | None:
    """Mean of a quantity of at least 0 over the repeats that measured it; None without any.

    There is no interval where steps of the point are not stationary.
    """
    known = [value for value in values if value is not None]
    return of_steps(point, share_mean(known)) if known else None


def of_steps(point: Point, estimate: Estimate) -> Estimate:
    """The estimate, without its interval where steps of the point are not stationary."""
    return not_stationary(estimate) if point.samples_per_s.basis == "not stationary" else estimate


def sentence(parts: Sequence[str]) -> str:
    """Non-empty parts, separated by spaces."""
    return " ".join(part for part in parts if part)
