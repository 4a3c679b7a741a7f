"""PNG twin of the figure of step time by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.efficiency import Curve
from analysis.figures.curve_drawing import add_legend, drawn_for_curves, new_axes, short_label
from analysis.figures.style import PHASE_COLOURS, PHASE_NAMES
from analysis.units import plural, seconds, time_scale


@drawn_for_curves
def composition_figure(curves: Sequence[Curve]) -> Figure:
    """Mean step time of each curve and size, divided into phases."""
    points = [point for curve in curves for point in curve.points]
    places = np.arange(len(points), dtype=np.float64)
    if len(curves) > 1:  # a free row above each curve's bars, for its name
        places += np.repeat(np.arange(1, len(curves) + 1), [len(curve.points) for curve in curves]) * 0.9
    figure, axes = new_axes(1.3 + 0.36 * (places[-1] + 1))
    totals = [sum(value or 0.0 for value in point.composition.values()) for point in points]
    factor, unit = time_scale(max(totals))
    left = np.zeros(len(points))
    for name, colour in PHASE_COLOURS.items():
        widths = np.array([(point.composition.get(name) or 0.0) * factor for point in points])
        if widths.any():
            edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
            axes.barh(places, widths, 0.74, left=left, color=colour, label=PHASE_NAMES[name], **edge)
            left += widths
    for place, total in zip(places, totals, strict=True):
        axes.annotate(
            seconds(total), (total * factor, place), (4, 0), textcoords="offset points", va="center"
        )
    if len(curves) > 1:
        firsts = np.cumsum([0, *(len(curve.points) for curve in curves)])[:-1]
        for curve, first in zip(curves, firsts, strict=True):
            name_at = (0, places[first] - 0.85)
            axes.annotate(short_label(curve.label), name_at, (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [plural(point.size, curve.unit) for curve in curves for point in curve.points])
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, (max(totals) * factor or 1.0) * 1.16)
    axes.set_xlabel(f"mean time of a step ({unit})")
    add_legend(figure, axes)
    return figure
