"""What all figures share: width, colours, axes with fixed margins and a legend above, marks with tooltips.

Lengths are in points, which are the units of the page's SVG. Figures do not use pyplot, so they change no
global state and need no display.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from matplotlib.transforms import Affine2D

P = ParamSpec("P")
R = TypeVar("R")

WIDTH = 480.0
"""Of every figure, so that all texts have one size."""
PNG_DPI = 172
"""Slightly more than twice the resolution of the page."""
_TEXT = 12.5
_CHARACTER = 8.2
"""Mean width of a character."""
_LINE = 19.0
"""Height of a row of the legend."""

_SHEET = Path(__file__).parents[1] / "report" / "templates" / "report.css"
COLOURS = dict(
    re.findall(r"--([\w-]+): (#\w{6});", _SHEET.read_text(encoding="utf-8").partition("@media")[0])
)
"""Colour of each variable of the page's style sheet in light mode; no two are equal."""
CURVES, SIZES = 7, 8
"""Colours `c0` to `c6` of curves, and `q0` (dark) to `q7` (light) of the sizes of one curve."""
PHASE_COLOURS = {
    "compute_s": "c0",
    "input_s": "c4",
    "comm_wait_s": "wait",
    "comm_transfer_s": "c1",
    "optimizer_s": "c5",
    "checkpoint_s": "c3",
    "other_s": "other",
}
PHASE_NAMES = {
    "compute_s": "compute",
    "input_s": "input",
    "comm_wait_s": "waiting for peers",
    "comm_transfer_s": "data transfer",
    "optimizer_s": "optimizer",
    "checkpoint_s": "checkpoint",
    "other_s": "other",
}
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHES = ((), (6, 4), (2, 3), (10, 3, 2, 3), (14, 4), (6, 3, 2, 3, 2, 3), (4, 2), (10, 3, 10, 3, 2, 3))
"""Lengths of dashes and gaps of lines of one colour, which differ in size; none for an unbroken line."""

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _TEXT,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # names of runs may have dollar signs
    "axes.labelcolor": COLOURS["faint"],
    "axes.edgecolor": COLOURS["faint"],
    "axes.spines.left": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": COLOURS["line"],
    "xtick.color": COLOURS["faint"],
    "ytick.color": COLOURS["faint"],
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "ytick.major.size": 0,
    "lines.linewidth": 2,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Axis:
    """The domain of one axis. Both bounds are greater than zero on a logarithmic axis."""

    label: str
    """With its unit; empty without a label."""
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None
    """Positions of ticks; round numbers by default."""
    form: Callable[[float], str] = "{:,.6g}".format
    """Text of a tick."""


def size_axis(label: str, sizes: Iterable[float]) -> Axis:
    """Ticks at each size; logarithmic if the largest is more than 8 times the smallest."""
    ticks = sorted({float(size) for size in sizes})
    low, high = ticks[0], ticks[-1]
    log, pad = high > 8 * low, 0.06 * (high - low) or 0.3 * low
    ends = (low / 1.15, high * 1.15) if log else (low - pad, high + pad)
    return Axis(label, *ends, log, ticks, "{:,.0f}".format)


def value_axis(
    label: str, low: float, high: float, *, log: bool = False, form: Callable[[float], str] = "{:,.6g}".format
) -> Axis:
    """Around values; from 0 where the lowest is below half of the highest."""
    if log:
        return Axis(label, 0.85 * low, 1.15 * high, True)
    pad = 0.06 * (high - low or abs(high) or 1.0)
    return Axis(label, min(0.0, low) if low < high / 2 else low - pad, high + pad, form=form)


@dataclass(frozen=True)
class LegendItem:
    """One entry of a legend."""

    label: str
    colour: str
    line: bool = False
    """A line in place of a box."""
    dashes: Sequence[float] = ()
    key: str | None = None
    """Key of the marks that the entry highlights."""


def curve_colour(index: int) -> str:
    """Colour of one of several curves."""
    return f"c{index % CURVES}"


def size_colour(index: int, sizes: int) -> str:
    """Colour of one of the sizes of a single curve."""
    return f"q{round(index * (SIZES - 1) / max(sizes - 1, 1))}"


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with the style of all figures."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(STYLE):
            return function(*args, **kwargs)

    return run


MARK = "\N{INVISIBLE SEPARATOR}"


def mark(artist: Artist, title: str = "", key: str | None = None) -> None:
    """Give an artist a tooltip on the page, and a key by which all its marks are highlighted together."""
    artist.set_gid(f"{key or ''}{MARK}{title}")


def panel(
    height: float, x: Axis, y: Axis, legend: Sequence[LegendItem] = (), *, left: float = 58.0, emulated: bool
) -> Axes:
    """Axes of `height` in a new figure; legend and label of the vertical axis stand above them."""
    rows = _legend_rows(legend, WIDTH - (80.0 if emulated else 0.0))
    head = max(_LINE * len(rows), _LINE * emulated) + (27.0 if y.label else 6.0)
    foot = 42.0 if x.label else 24.0
    whole = head + height + foot
    figure = Figure((WIDTH / 72, whole / 72))
    box = (left / WIDTH, foot / whole, 1 - (left + 14.0) / WIDTH, height / whole)
    axes = figure.add_axes(box)
    _set(axes, "x", x)
    _set(axes, "y", y)
    axes.set_xlabel(x.label)
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
    figure.text(2, whole - head + 12, y.label, color=COLOURS["faint"], transform=points)
    for index, row in enumerate(rows):
        at_y = whole - 13 - _LINE * index
        for at, item in row:
            colour = COLOURS[item.colour]
            swatch: Artist
            if item.line:
                ends = [at, at + 28], [at_y + 4] * 2
                swatch = Line2D(*ends, color=colour, linestyle=linestyle(item.dashes))
            else:
                swatch = Rectangle((at, at_y - 1), 12, 11, color=colour)
            swatch.set_transform(points)
            mark(figure.add_artist(swatch), key=item.key)
            label = figure.text(at + (34 if item.line else 18), at_y, item.label, transform=points)
            mark(label, key=item.key)
    if emulated:
        place: dict[str, Any] = {"transform": points, "ha": "right", "weight": "bold"}
        figure.text(WIDTH - 2, whole - 13, "emulated", color=COLOURS["emu"], **place)
    return axes


def figure_of(axes: Axes) -> Figure:
    """The figure that has these axes."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure


def linestyle(dashes: Sequence[float]) -> Any:
    """Dashes in points, as matplotlib wants them for lines of the common width."""
    return (0, tuple(length / 2 for length in dashes)) if dashes else "-"


def text_width(text: str) -> float:
    """Estimated width of a line of text."""
    return len(text) * _CHARACTER


@styled
def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return image.getvalue()


def _set(axes: Axes, name: Literal["x", "y"], domain: Axis) -> None:
    """Domain, scale and ticks of one axis."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    axes.set(**{f"{name}lim": (domain.low, domain.high)})
    if domain.log:
        base = 2 if domain.high <= 2**10 * domain.low else 10
        getattr(axes, f"set_{name}scale")("log", base=base)
        axis.set_major_locator(LogLocator(base=base, numticks=7))
    if domain.ticks is not None:
        axis.set_major_locator(FixedLocator(_apart(domain) if name == "x" else domain.ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: domain.form(value))


def _apart(domain: Axis) -> list[float]:
    """Ticks without those whose texts would touch the one before."""
    kept: list[float] = []
    end = -math.inf
    scale = math.log if domain.log else float
    for tick in domain.ticks or ():
        share = (scale(tick) - scale(domain.low)) / (scale(domain.high) - scale(domain.low))
        half = text_width(domain.form(tick)) / 2
        if share * WIDTH - half > end:
            kept.append(tick)
            end = share * WIDTH + half
    return kept


def _legend_rows(legend: Sequence[LegendItem], width: float) -> list[list[tuple[float, LegendItem]]]:
    """Entries with the position of each, in as many rows as they need."""
    rows: list[list[tuple[float, LegendItem]]] = []
    at = 0.0
    for item in legend:
        needed = (34 if item.line else 18) + text_width(item.label) + 12
        if not rows or at + needed > width:
            rows.append([])
            at = 2.0
        rows[-1].append((at, item))
        at += needed
    return rows
