"""Heat map of a matrix, of thick lines: an image would keep its colours in dark mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.draw.style import COLOURS, Axis, LegendItem, mark, panel, styled, text_width
from analysis.stats.estimates import Floats

_LEVELS = 9
_MOST_NAMES = 32


@styled
def heat_map(
    values: Floats,
    rows: Sequence[str],
    x: Axis,
    strongest: tuple[float, str],
    *,
    titles: Sequence[str],
    emulated: bool,
) -> Figure:
    """A cell for each value of at least 0 [ranks, columns], first rank on top; NaN leaves a gap.

    Args:
        rows: name of each rank.
        x: axis of the columns, from the start of the first to the end of the last.
        strongest: least value with the strongest colour, and its text.
        titles: tooltip of each rank.
    """
    stride = -(-len(rows) // _MOST_NAMES)
    ticks = list(range(0, len(rows), stride))
    y = Axis("rank", len(rows) - 0.5, -0.5, ticks=ticks, form=lambda at, _: rows[round(at)])
    thickness = max(6.0, min(18.0, 420.0 / len(rows)))
    legend = [LegendItem(f"{strongest[1]} or more", "heat")]
    left = max(map(text_width, rows)) + 14
    figure, axes = panel(thickness * len(rows), x, y, legend, left=left, emulated=emulated)
    axes.grid(visible=False)
    with np.errstate(invalid="ignore"):  # NaN has no level
        levels = np.clip(np.floor(values / strongest[0] * _LEVELS), 0, _LEVELS - 1)
    edges = np.linspace(x.low, x.high, values.shape[1] + 1)
    for level in range(_LEVELS):  # a line along each run of neighbouring cells of a row
        changes = np.diff(np.pad(levels == level, ((0, 0), (1, 1))).astype(np.int8))
        ranks, starts = np.nonzero(changes == 1)
        _, ends = np.nonzero(changes == -1)
        xs = np.stack([edges[starts], edges[ends], np.full(len(ranks), np.nan)], axis=1)
        (cells,) = axes.plot(xs.ravel(), np.repeat(ranks, 3), color=COLOURS["heat"], solid_capstyle="butt")
        cells.set(alpha=(level + 0.5) / _LEVELS, linewidth=0.94 * thickness)
    for at, title in enumerate(titles):
        mark(axes.axhspan(at - 0.5, at + 0.5, color=COLOURS["bg"], alpha=0), title)
    return figure
