"""Heat map of a matrix: rows are ranks or nodes, columns are steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.svg.elements import element, mark, shortened, text, text_width
from analysis.svg.plot import HALF, Plot
from analysis.svg.scales import Axis

LEVELS = 9
"""Steps of the colour scale; class `heat0` is the lowest."""
_MOST_NAMES = 32


def heat_map(
    values: NDArray[np.float64],
    rows: Sequence[str],
    x: Axis,
    *,
    name: str,
    title: str,
    description: str,
    scale: tuple[float, float],
    form: Callable[[float], str],
    width: float = HALF,
    row_titles: Sequence[str] | None = None,
    label: str = "rank",
) -> str:
    """The `<svg>` of `values` [rows, columns]; NaN leaves a gap.

    Args:
        rows: name of each row; also the key by which a row is highlighted.
        x: axis of the columns, from the start of the first to the end of the last.
        scale: values of the palest and of the strongest colour; values beyond take the nearer one.
        form: text of a value in the colour scale.
        row_titles: tooltip of each row; its name by default.
        label: what the rows are, above their names.
    """
    height = max(6.0, min(18.0, 420.0 / max(len(rows), 1)))
    left = min(max(text_width(row) for row in rows) + 12, width * 0.3)
    plot = Plot(name, title, description, x, Axis("", 0, 1), width=width, left=left, grid="", categories=True)
    top = 34.0
    plot.height = top + height * len(rows) + 44
    cell = (width - plot.right - left) / values.shape[1]
    stride = -(-len(rows) // _MOST_NAMES)
    plot.add(text(label, 2, 26, class_="label"), _colour_scale(scale, form, width))
    for index, row in enumerate(rows):
        y = top + index * height
        levels = _levels(values[index], scale)
        paths = [
            element("path", d=_runs(levels == level, left, cell, y, height - 0.8), class_=f"fill heat{level}")
            for level in range(LEVELS)
            if (levels == level).any()
        ]
        shown = row if row_titles is None else row_titles[index]
        paths.append(
            mark("rect", shown, x=left, y=y, width=width - plot.right - left, height=height, class_="hit")
        )
        plot.add(element("g", *paths, data_k=row))
        if index % stride == 0:
            plot.add(text(shortened(row, left - 8), left - 8, y + height / 2 + 4, class_="tick end"))
    return plot.svg()


def _levels(values: NDArray[np.float64], scale: tuple[float, float]) -> NDArray[np.int64]:
    low, high = scale
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    found = np.clip(np.floor(np.nan_to_num(share, nan=0.0) * LEVELS), 0, LEVELS - 1).astype(np.int64)
    found[np.isnan(values)] = -1
    return found


def _runs(chosen: NDArray[np.bool_], left: float, cell: float, y: float, height: float) -> str:
    """A path of one rectangle for each run of neighbouring chosen cells."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    boxes = [(left + a * cell, (b - a) * cell) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return "".join(f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z" for x, width in boxes)


def _colour_scale(scale: tuple[float, float], form: Callable[[float], str], width: float) -> str:
    size, right = 16.0, width - 14
    high = form(scale[1])
    start = right - text_width(high) - 6 - LEVELS * size
    boxes = [
        element("rect", x=start + level * size, y=6, width=size, height=10, class_=f"fill heat{level}")
        for level in range(LEVELS)
    ]
    low = text(form(scale[0]), start - 6, 15, class_="tick end")
    return low + "".join(boxes) + text(high, right, 15, class_="tick end")
