"""Style of all figures: size, ink, and one colour for each phase and curve."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

P = ParamSpec("P")

DPI = 220
"""Slightly more than twice the resolution of the page."""
WIDTH_IN = 5.2

ONE_COLUMN = 6
"""Histograms in one column; more are in two."""

EMULATED = "#7a1fa2"
"""The colour of the report's banner for emulated runs."""
INK, FAINT, GRID = "#1c1c1c", "#6b6b6b", "#e4e4e4"

PHASE_COLOURS = {
    "compute_s": "#0072b2",
    "input_s": "#e69f00",
    "comm_wait_s": "#f0a27a",
    "comm_transfer_s": "#d55e00",
    "optimizer_s": "#56b4e9",
    "checkpoint_s": "#cc79a7",
    "other_s": "#b4b4b4",
}
"""One colour for each phase of a step (palette of Okabe and Ito)."""
PHASE_NAMES = {
    "compute_s": "compute",
    "input_s": "input",
    "comm_wait_s": "waiting for peers",
    "comm_transfer_s": "data transfer",
    "optimizer_s": "optimizer",
    "checkpoint_s": "checkpoint",
    "other_s": "other",
}
CURVE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1c1c1c")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHES = ((), (6, 4), (2, 3), (10, 3, 2, 3), (14, 4), (6, 3, 2, 3, 2, 3), (4, 2), (10, 3, 10, 3, 2, 3))
"""Lengths of dashes and gaps of lines of one colour, which differ in size; none for an unbroken line."""

PHASE_CLASSES = {
    "compute_s": "ph-compute",
    "input_s": "ph-input",
    "comm_wait_s": "ph-wait",
    "comm_transfer_s": "ph-transfer",
    "optimizer_s": "ph-optimizer",
    "checkpoint_s": "ph-checkpoint",
    "other_s": "ph-other",
}
"""CSS class of each phase's colour on the page."""
CLASS_COLOURS = {
    **{PHASE_CLASSES[name]: colour for name, colour in PHASE_COLOURS.items()},
    **{f"c{index}": colour for index, colour in enumerate(CURVE_COLOURS)},
    "ph-hidden": "#9fc9e6",
    "good": "#00795a",
    "bad": "#b3261e",
    "faint": FAINT,
    "ink": INK,
}
"""Colours of CSS classes in PNG figures; as on the page in light mode."""
SIZE_CLASSES = 8
"""Classes `q0` (dark) to `q7` (light): the sizes of a single curve."""

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.2,
    "lines.linewidth": 1.5,
    "figure.facecolor": "white",
}


def curve_class(index: int) -> str:
    """CSS class of the colour of one of several curves."""
    return f"c{index % len(CURVE_COLOURS)}"


def size_class(index: int, sizes: int) -> str:
    """CSS class of the colour of one of the sizes of a single curve."""
    return f"q{round(index * (SIZE_CLASSES - 1) / max(sizes - 1, 1))}"


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def mark_emulated(figure: Figure) -> None:
    """Mark a figure with results of emulated runs."""
    figure.suptitle("emulated", x=0.995, ha="right", fontsize=8.8, fontweight="bold", color=EMULATED)
