"""Heat map of a matrix, of thick lines: an image would keep its colours in dark mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.draw.style import COLOURS, Axis, LegendItem, mark, panel, styled, text_width
from analysis.stats.estimates import Floats

_PALEST = 0.1
"""Share of the strongest colour below which a cell has none."""


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
    """A cell for each value above 0 [ranks, columns], first rank on top; NaN leaves a gap.

    Args:
        rows: name of each rank.
        x: axis of the columns, from the start of the first to the end of the last.
        strongest: least value with the strongest colour, and its text.
        titles: tooltip of each rank.
    """
    y = Axis("rank", len(rows) - 0.5, -0.5, ticks=range(len(rows)), form=lambda at, _: rows[round(at)])
    thickness = max(6.0, min(18.0, 420.0 / len(rows)))
    legend = [LegendItem(f"{strongest[1]} or more", "heat")]
    left = max(map(text_width, rows)) + 14
    figure, axes = panel(thickness * len(rows), x, y, legend, left=left, emulated=emulated)
    axes.grid(visible=False)
    shades, edges = np.minimum(values / strongest[0], 1.0), np.linspace(x.low, x.high, values.shape[1] + 1)
    ranks, columns = np.nonzero(shades > _PALEST)
    if ranks.size:
        first, end, shade = edges[columns], edges[columns + 1], shades[ranks, columns]
        axes.hlines(ranks, first, end, COLOURS["heat"], alpha=shade, linewidth=0.94 * thickness)
    for at, title in enumerate(titles):
        mark(axes.axhspan(at - 0.5, at + 0.5, color=COLOURS["bg"], alpha=0), title)
    return figure
