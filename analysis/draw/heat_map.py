"""Heat map of a matrix, of bars: an image would keep its colours in dark mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from analysis.draw.style import COLOURS, WIDTH, Axis, figure_of, mark, panel, styled, text_width
from analysis.stats.estimates import Floats

_LEVELS = 9
_MOST_NAMES = 32


@styled
def heat_map(
    values: Floats,
    rows: Sequence[str],
    x: Axis,
    scale: tuple[float, float],
    *,
    form: Callable[[float], str],
    titles: Sequence[str],
    label: str = "rank",
    emulated: bool,
) -> Figure:
    """A cell for each value [rows, columns], first row on top; NaN leaves a gap.

    Args:
        rows: name of each row.
        x: axis of the columns, from the start of the first to the end of the last.
        scale: values of the palest and of the strongest colour; values beyond take the nearer one.
        form: text of a value in the colour scale.
        titles: tooltip of each row.
        label: what the rows are, above their names.
    """
    stride = -(-len(rows) // _MOST_NAMES)
    names = dict(zip(range(0, len(rows), stride), rows[::stride], strict=True))
    row_height = max(6.0, min(18.0, 420.0 / len(rows)))
    height = row_height * len(rows)
    y = Axis(label, len(rows) - 0.5, -0.5, ticks=list(names), form=lambda at: names.get(round(at), ""))
    left = max(map(text_width, rows)) + 14
    axes = panel(height, x, y, left=left, emulated=emulated)
    axes.grid(visible=False)
    levels = _levels(values, scale)
    edges = np.linspace(x.low, x.high, values.shape[1] + 1)
    above = axes.transAxes + ScaledTranslation(0, 6 / 72, figure_of(axes).dpi_scale_trans)
    end = 1 - text_width(form(scale[1])) / (WIDTH - left)
    for level in range(_LEVELS):
        style: dict[str, Any] = {"color": COLOURS["heat"], "alpha": (level + 0.5) / _LEVELS}
        if (levels == level).any():
            cells = _cells(levels == level, edges)
            axes.add_patch(
                PathPatch(cells, fill=False, linewidth=0.94 * row_height, capstyle="butt", **style)
            )
        at = end - 0.03 * (_LEVELS - level)
        box = (at, 1), 0.03, 10 / height
        axes.add_patch(Rectangle(*box, transform=above, clip_on=False, linewidth=0, **style))
    axes.text(end - 0.03 * _LEVELS - 0.01, 1, form(scale[0]), transform=above, ha="right")
    axes.text(1, 1, form(scale[1]), transform=above, ha="right")
    for at, title in enumerate(titles):
        row = axes.axhspan(at - 0.5, at + 0.5, color=COLOURS["bg"], alpha=0)
        mark(row, title)
    return figure_of(axes)


def _levels(values: Floats, scale: tuple[float, float]) -> NDArray[np.int64]:
    """Index of the colour of each cell; -1 for NaN."""
    low, high = scale
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    levels = np.clip(np.floor(np.nan_to_num(share) * _LEVELS), 0, _LEVELS - 1).astype(np.int64)
    return np.where(np.isnan(values), -1, levels)


def _cells(chosen: NDArray[np.bool_], edges: Floats) -> Path:
    """A line along each run of neighbouring chosen cells of a row."""
    steps = np.diff(np.pad(chosen.astype(np.int8), ((0, 0), (1, 1))))
    rows, starts = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    vertices = np.stack([edges[starts], rows, edges[ends], rows], axis=1).reshape(-1, 2)
    return Path(vertices, np.tile([Path.MOVETO, Path.LINETO], len(rows)))
