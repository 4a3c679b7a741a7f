"""Histograms of durations, one row for each size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from analysis.draw.style import COLOURS, Axis, mark, panel, styled
from analysis.stats.estimates import Floats

_BINS = 48
_ROW = 62.0
_BAR = 0.62
"""Height of the highest bar as a share of its row; the texts stand above it."""


class Distribution(NamedTuple):
    """One row of the figure."""

    name: str
    text: str
    """At the right end of the row."""
    values: Floats
    colour: str


@styled
def histograms(rows: Sequence[Distribution], x: Axis, *, emulated: bool) -> Figure:
    """A histogram for each row; the last bar also counts values beyond the axis."""
    figure, axes = panel(_ROW * len(rows), x, Axis("", len(rows), 0, ticks=()), left=8.0, emulated=emulated)
    axes.grid(visible=False)
    edges = np.linspace(x.low, x.high, _BINS + 1)
    ends = axes.get_yaxis_transform()
    for at, row in enumerate(rows):
        counts, _ = np.histogram(np.clip(row.values, x.low, x.high), edges)
        top = at + 1 - _BAR * counts / max(counts.max(), 1)
        bars = axes.stairs(top, edges, baseline=at + 1, fill=True, color=COLOURS[row.colour])
        mark(bars, f"{row.name}: {row.text}")
        axes.axhline(at + 1, color=COLOURS["faint"], linewidth=1)
        axes.text(0, at + 0.28, row.name, transform=ends, weight="bold")
        axes.text(1, at + 0.28, row.text, transform=ends, ha="right", color=COLOURS["faint"])
    return figure
