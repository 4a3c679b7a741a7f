"""A figure with two axes, grid lines, a legend above, and room for marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis.svg.elements import document, element, shortened, text, text_width
from analysis.svg.scales import Axis, Scale

HALF = 480.0
"""Width of the view box of a figure of half the page width."""
_LEGEND_ROW = 19.0
_SWATCH = 12.0
_DASHED_SWATCH = 30.0
"""Width of a swatch that shows a pattern of dashes."""


@dataclass(frozen=True)
class LegendItem:
    """One entry of a legend: its text, and the class of its colour."""

    label: str
    colour: str
    shape: str = "box"
    """`box`, `line` or `dashes`."""
    key: str | None = None
    """Key of the marks that the entry highlights."""
    dashes: str | None = None
    """Lengths of dashes and gaps of a line, where these name it; empty for an unbroken one."""

    @property
    def swatch(self) -> float:
        """Width of the mark before the label."""
        return _SWATCH if self.dashes is None else _DASHED_SWATCH


@dataclass
class Plot:
    """A plot of `width` x `height` in units of the view box; marks are added as SVG text."""

    name: str
    """Unique in the page."""
    title: str
    description: str
    x: Axis
    y: Axis
    legend: Sequence[LegendItem] = ()
    width: float = HALF
    height: float = 300.0
    left: float = 58.0
    """Width of the margin for the labels of the vertical axis."""
    right: float = 14.0
    grid: str = "y"
    """Axes with grid lines: `x`, `y`, `xy` or empty."""
    categories: bool = False
    """Whether the vertical axis has names of rows in place of ticks (`analysis.svg.bars`)."""
    marks: list[str] = field(default_factory=list)
    head: float | None = None
    """Top of the marks of a plot that is one row of several; below label and legend by default."""

    @property
    def top(self) -> float:
        """Height of the legend and of the label of the vertical axis, above the marks."""
        if self.head is not None:
            return self.head - 8
        label = 18.0 if self.y.label and not self.categories else 4.0
        return label + _LEGEND_ROW * len(self._legend_rows())

    @property
    def bottom(self) -> float:
        return self.height - (42.0 if self.x.label else 24.0)

    @property
    def xs(self) -> Scale:
        return Scale(self.x, self.left, self.width - self.right)

    @property
    def ys(self) -> Scale:
        return Scale(self.y, self.bottom, self.top + 8)

    def add(self, *marks: str) -> Plot:
        """Add marks above those that are there."""
        self.marks.extend(marks)
        return self

    def caption(self, left: str, right: str, y: float) -> None:
        """Texts at both ends of a line; the left one is cut where it would meet the right one."""
        room = self.width - self.right - self.left - text_width(right)
        self.add(
            text(shortened(left, room), self.left, y, class_="strong"),
            text(right, self.width - self.right, y, class_="tick end"),
        )

    def rule(self, y: float) -> None:
        """A horizontal line over the width of the plot."""
        self.add(element("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="axis"))

    def svg(self) -> str:
        """The `<svg>` element."""
        body = self._axes() + "".join(self.marks) + self._legend()
        return document(
            body,
            name=self.name,
            width=self.width,
            height=self.height,
            title=self.title,
            description=self.description,
        )

    def _axes(self) -> str:
        parts, right = [], self.width - self.right
        for value in self.x.marks:
            at = self.xs(value)
            if "x" in self.grid:
                parts.append(element("line", x1=at, x2=at, y1=self.top + 8, y2=self.bottom, class_="grid"))
            parts.append(text(self.x.form(value), at, self.bottom + 17, class_="tick mid"))
        if not self.categories:
            for value in self.y.marks:
                at = self.ys(value)
                if "y" in self.grid:
                    parts.append(element("line", x1=self.left, x2=right, y1=at, y2=at, class_="grid"))
                parts.append(text(self.y.form(value), self.left - 7, at + 4, class_="tick end"))
            if self.y.label:
                parts.append(text(self.y.label, 2, self.top - 4, class_="label"))
            parts.append(
                element("line", x1=self.left, x2=right, y1=self.bottom, y2=self.bottom, class_="axis")
            )
        if self.x.label:
            middle = (self.left + right) / 2
            parts.append(text(self.x.label, middle, self.height - 6, class_="label mid"))
        return "".join(parts)

    def _legend_rows(self) -> list[list[tuple[float, LegendItem]]]:
        rows: list[list[tuple[float, LegendItem]]] = []
        at = 0.0
        for item in self.legend:
            width = item.swatch + 6 + text_width(item.label) + 14
            if not rows or at + width > self.width:
                rows.append([])
                at = 2.0
            rows[-1].append((at, item))
            at += width
        return rows

    def _legend(self) -> str:
        parts = []
        for row, items in enumerate(self._legend_rows()):
            y = 13.0 + _LEGEND_ROW * row
            for at, item in items:
                if item.shape == "box":
                    swatch = element(
                        "rect", x=at, y=y - 10, width=_SWATCH, height=_SWATCH, class_=f"fill {item.colour}"
                    )
                else:
                    dashes = " dashes" if item.shape == "dashes" else ""
                    line = f"stroke {item.colour}{dashes}"
                    ends = {"x1": at, "x2": at + item.swatch + 2, "y1": y - 4, "y2": y - 4}
                    swatch = element("line", **ends, class_=line, stroke_dasharray=item.dashes or None)
                label = text(item.label, at + item.swatch + 6, y, class_="legend")
                parts.append(element("g", swatch, label, data_k=item.key))
        return "".join(parts)
