"""Histogram bars and empirical cumulative distribution functions (ECDF)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from analysis.svg.elements import element, mark
from analysis.svg.plot import Plot

_MOST_POINTS = 160
"""Points of an ECDF: quantiles at equal distances, so that the size of a page does not grow with its runs."""


def histogram(plot: Plot, edges: ArrayLike, counts: ArrayLike, colour: str, titles: list[str]) -> str:
    """Bars from zero over bins: `edges` [bins + 1], `counts` [bins], one tooltip for each bin."""
    found = np.asarray(edges, dtype=np.float64)
    parts = []
    for low, high, count, title in zip(found[:-1], found[1:], np.asarray(counts), titles, strict=True):
        if count > 0:
            x, y = plot.xs(low), plot.ys(float(count))
            width = max(plot.xs(high) - x - 0.5, 0.5)
            parts.append(
                mark("rect", title, x=x, y=y, width=width, height=plot.bottom - y, class_=f"fill {colour}")
            )
    return element("g", *parts)


def ecdf_points(values: ArrayLike) -> tuple[list[float], list[float]]:
    """Values and the share of observations up to each, thinned to at most 160 points.

    Raises:
        ValueError: no values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not ordered.size:
        raise ValueError("an ECDF needs at least one value")
    index = np.unique(np.linspace(0, ordered.size - 1, min(ordered.size, _MOST_POINTS)).astype(int))
    return [float(value) for value in ordered[index]], [float(place + 1) / ordered.size for place in index]
