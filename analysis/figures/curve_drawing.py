"""Parts that the PNG figures of scaling curves share: style, size, colours of points, legend.

The figures do not use pyplot, so they change no global state and need no display. Their size is half a page.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, NamedTuple, ParamSpec

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis.efficiency import Curve, Point
from analysis.figures.style import CURVE_COLOURS, WIDTH_IN, mark_emulated, styled
from analysis.units import plural

P = ParamSpec("P")


def drawn_for_curves(
    draw: Callable[Concatenate[Sequence[Curve], P], Figure],
) -> Callable[Concatenate[Sequence[Curve], P], Figure]:
    """Draw in the style of `analysis.figures.style`, with a mark if a curve is emulated."""

    @functools.wraps(draw)
    def drawn(curves: Sequence[Curve], *args: P.args, **kwargs: P.kwargs) -> Figure:
        figure = styled(draw)(curves, *args, **kwargs)
        if any(curve.emulated for curve in curves):
            mark_emulated(figure)
        return figure

    return drawn


def new_axes(height_in: float) -> tuple[Figure, Axes]:
    """A figure of the common width with one plot."""
    figure = Figure((WIDTH_IN, height_in), layout="constrained")
    return figure, figure.add_subplot()


def axis_from_zero(axes: Axes, highest: float) -> None:
    """Axis from zero with room for intervals; intervals far wider than the values are cut."""
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.06 * highest), 1.4 * highest))


def add_legend(figure: Figure, axes: Axes) -> None:
    """Legend below the plot, so that long names fit and cover no data."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        longest = max(map(len, labels))
        columns = 1 if longest > 27 else 2 if longest > 15 else 3
        figure.set_figheight(figure.get_figheight() + 0.17 * (len(labels) // columns - 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def coloured_points(curves: Sequence[Curve]) -> list[tuple[Curve, Point, str]]:
    """Points with colours: dark to light by size on a single curve, else one colour a curve."""
    if len(curves) == 1:
        shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.78, len(curves[0].points)))
        return [
            (curves[0], point, to_hex(shade)) for point, shade in zip(curves[0].points, shades, strict=True)
        ]
    colours = [CURVE_COLOURS[index % len(CURVE_COLOURS)] for index in range(len(curves))]
    return [(c, point, colour) for c, colour in zip(curves, colours, strict=True) for point in c.points]


class RunLine(NamedTuple):
    """One run of a figure with a line for each run."""

    frame: pd.DataFrame
    colour: str
    label: str | None
    """None where an earlier run has the same label: one entry in the legend."""
    position: float
    """Position of the size among all points of the figure, in (0, 1]."""


def run_lines(curves: Sequence[Curve], frame: pd.DataFrame) -> Iterator[RunLine]:
    """The runs of the curves that have rows in `frame`, by curve and size.

    A label is the size on a single curve, else the name of the curve.
    """
    by_run = {key: rows for key, rows in frame.groupby(["sweep", "run"])}
    named: set[str] = set()
    points = coloured_points(curves)
    for number, (curve, point, colour) in enumerate(points, start=1):
        label = plural(point.size, curve.unit) if len(curves) == 1 else short_label(curve.label)
        for run in point.runs:
            if (rows := by_run.get((curve.sweep, run))) is not None:
                yield RunLine(rows, colour, None if label in named else label, number / len(points))
                named.add(label)


def short_label(label: str) -> str:
    """The label, cut after 60 characters."""
    return textwrap.shorten(label, 60, placeholder=" …") if " " in label else label[:60]
