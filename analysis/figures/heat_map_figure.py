"""PNG twin of a heat map: the matrix of `analysis.svg.heat_map` drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from analysis.figures.style import WIDTH_IN, mark_emulated, styled
from analysis.stats.estimates import Floats
from analysis.svg.scales import Axis

_COLOURS = LinearSegmentedColormap.from_list("heat", ["#fbf0eb", "#a8320a"])
"""From the lowest to the highest value; as on the page in light mode."""
_MOST_NAMES = 32


@styled
def heat_map_figure(
    values: Floats,
    rows: Sequence[str],
    x: Axis,
    scale: tuple[float, float],
    *,
    form: Callable[[float], str],
    emulated: bool = False,
) -> Figure:
    """A cell for each value [rows, columns], first row on top; NaN leaves a gap.

    Args:
        rows: name of each row.
        x: axis of the columns, from the start of the first to the end of the last.
        scale: values of the palest and of the strongest colour; values beyond take the nearer one.
        form: text of a value beside the colour scale.
        emulated: whether a run is emulated, which the figure then says.
    """
    figure = Figure((2 * WIDTH_IN, 1.4 + min(0.22 * len(rows), 4.4)), layout="constrained")
    axes = figure.add_subplot()
    low, high = scale
    image = axes.imshow(
        values,
        cmap=_COLOURS,
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        extent=(x.low, x.high, len(rows) - 0.5, -0.5),
    )
    stride = -(-len(rows) // _MOST_NAMES)
    axes.set_yticks(range(0, len(rows), stride), rows[::stride])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.set_xlabel(x.label)
    axes.set_ylabel("rank")
    bar = figure.colorbar(image, ax=axes, ticks=[low, high], pad=0.01)
    bar.ax.set_yticklabels([form(low), form(high)])
    if emulated:
        mark_emulated(figure)
    return figure
