"""What all figures share: width, colours, axes with fixed margins and a legend above, marks with tooltips.

Lengths are in points, which are the units of the page's SVG. Figures do not use pyplot, so they change no
global state and need no display.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType

from analysis.stats.estimates import Estimate
from analysis.units import Unit, text

WIDTH = 480.0
"""Of every figure, so that all texts have one size."""
PNG_DPI = 172
"""Slightly more than twice the resolution of the page."""
_CHARACTER = 8.2
"""Mean width of a character."""
_MOST_TICKS = 12
_LINE = 19.0
"""Height of a row of the legend."""
_FOOT = 42.0
"""Height of the ticks and the label below the axes."""

_TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
_SHEET = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--([\w-]+): (#\w{6});", _SHEET.partition("@media")[0]))
"""Colour of each variable of the page's style sheet in light mode; no two are equal."""
CURVES, SIZES = 7, 8
"""Colours `c0` to `c6` of curves, and `q0` (dark) to `q7` (light) of the sizes of one curve."""
PHASE_NAMES = {
    "compute_s": "compute",
    "input_s": "input",
    "comm_wait_s": "waiting for peers",
    "comm_transfer_s": "data transfer",
    "optimizer_s": "optimizer",
    "checkpoint_s": "checkpoint",
    "other_s": "other",
}
PHASE_COLOURS = dict(zip(PHASE_NAMES, ("c0", "c4", "wait", "c1", "c5", "c3", "other"), strict=True))
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
Form = str | Callable[[float, float], str]
"""Format of `x`, or a function of it and the number of its tick."""
DASHES: tuple[LineStyleType, ...] = (
    "-", "--", ":", "-.", (0, (8, 2)), (0, (4, 2, 1, 2, 1, 2)), (0, (2, 1)), (0, (8, 2, 1, 2, 1, 2)),
)  # fmt: skip
"""Of lines of one colour, which differ in size."""

STYLE: dict[Any, Any] = {
    **rc_params_from_file(_TEMPLATES / "figure.mplstyle", use_default_template=False),
    "text.color": COLOURS["ink"],
    "grid.color": COLOURS["line"],
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), COLOURS["faint"]),
}


class Axis(NamedTuple):
    """The domain of one axis. Both bounds are greater than zero on a logarithmic axis."""

    label: str
    """With its unit; empty without a label."""
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None
    """Positions of ticks; round numbers by default."""
    form: Form = "{x:,.6g}"
    """Texts of ticks."""


def size_axis(label: str, sizes: Iterable[float]) -> Axis:
    """Ticks at sizes, of many at some; logarithmic if the largest is more than 8 times the smallest."""
    ticks = sorted({float(size) for size in sizes})
    low, high = ticks[0], ticks[-1]
    log, pad = high > 8 * low, 0.06 * (high - low) or 0.3 * low
    ends = (low / 1.15, high * 1.15) if log else (low - pad, high + pad)
    return Axis(label, *ends, log, ticks[:: -(-len(ticks) // _MOST_TICKS)], "{x:,.0f}")


def value_axis(label: str, low: float, high: float, unit: Unit = "", *, log: bool = False) -> Axis:
    """Around values; from 0 where the lowest is below half of the highest. Ticks of some units have it."""
    pad = 0.06 * (high - low or abs(high) or 1.0)
    first, last = min(0.0, low) if low < high / 2 else low - pad, high + pad
    axis = Axis(label, 0.85 * low, 1.15 * high, True) if log else Axis(label, first, last)
    if unit not in ("ratio", "B/s", "share"):
        return axis
    return axis._replace(form=lambda value, _: text(value, unit, 0 if unit == "share" else None))


class LegendItem(NamedTuple):
    """One entry of a legend."""

    label: str
    colour: str
    line: LineStyleType = ""
    """A line in place of a box."""
    key: str | None = None
    """Key of the marks that the entry highlights."""

    @property
    def marker(self) -> str:
        return "" if self.line else "s"


def curve_colour(index: int) -> str:
    """Colour of one of several curves."""
    return f"c{index % CURVES}"


def size_colour(index: int, sizes: int) -> str:
    """Colour of one of the sizes of a single curve."""
    return f"q{round(index * (SIZES - 1) / max(sizes - 1, 1))}"


styled = matplotlib.rc_context(STYLE)
"""Decorator of functions that draw."""

MARK = "\N{INVISIBLE SEPARATOR}"


def mark(artist: Artist, title: str = "", key: str | None = None) -> None:
    """Give an artist a tooltip on the page, and a key by which all its marks are highlighted together."""
    artist.set_gid(f"{key or ''}{MARK}{title}")


def panel(
    height: float, x: Axis, y: Axis, legend: Sequence[LegendItem] = (), *, left: float = 58.0, emulated: bool
) -> tuple[Figure, Axes]:
    """A figure with axes of `height`; legend and label of the vertical axis stand above them."""
    columns = max(1, int(WIDTH // max([text_width(item.label) + 46 for item in legend], default=WIDTH)))
    head = _LINE * -(-len(legend) // columns) + (27.0 if y.label or emulated else 6.0)
    whole = head + height + _FOOT
    figure = Figure((WIDTH / 72, whole / 72))
    axes = figure.add_axes((left / WIDTH, _FOOT / whole, 1 - (left + 14.0) / WIDTH, height / whole))
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high), xlabel=x.label)
    for axis, domain in ((axes.xaxis, x), (axes.yaxis, y)):
        if domain.log:
            base = 2 if domain.high <= 2**6 * domain.low else 10
            (axes.set_xscale if domain is x else axes.set_yscale)("log", base=base)
        if domain.ticks is not None:
            axis.set_ticks(domain.ticks)
        axis.set_major_formatter(domain.form)
    axes.minorticks_off()
    axes.set_title(y.label, loc="left", color=COLOURS["faint"], y=1.0)
    axes.yaxis.set_label_coords(0.0, 0.5)  # with fixed places, a drawing takes three quarters of the time
    axes.set_title("emulated" if emulated else "", loc="right", color=COLOURS["emu"], weight="bold")
    handles = [
        Line2D([], [], color=COLOURS[item.colour], label=item.label, linestyle=item.line, marker=item.marker)
        for item in legend
    ]
    entries = figure.legend(handles=handles, ncols=columns)
    for item, *artists in zip(legend, entries.legend_handles, entries.get_texts(), strict=True):
        for artist in filter(None, artists):
            mark(artist, key=item.key)
    return figure, axes


def errors(estimate: Estimate) -> list[list[float]] | None:
    """Lengths of an error bar below and above the value; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def text_width(text: str) -> float:
    """Estimated width of a line of text."""
    return len(text) * _CHARACTER


@styled
def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return image.getvalue()
