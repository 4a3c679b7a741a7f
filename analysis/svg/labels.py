"""Labels of points and of ends of lines, placed without collisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from analysis.svg.elements import element, text, text_width
from analysis.svg.plot import Plot

HEIGHT = 17.0
"""Height of a line of text, in units of the view box."""
_ASCENT = 13.0
_POINT = 6.0
"""Half the side of the square that a point keeps free."""
_DISTANCES = (8.0, 13.0, 20.0, 29.0, 40.0, 53.0, 68.0, 85.0, 104.0)
_DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))
_LINE = 5.0
"""Side of the boxes that cover a line."""
_ONE_POINT = 9.0
"""Distance in units of the view box below which two points cover each other."""
_LEADER = 13.0
"""Labels farther from their point are joined to it by a line."""


class Box(NamedTuple):
    """A rectangle in units of the view box; `top` is less than `bottom`."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share an area; common edges are none."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def within(self, other: Box) -> bool:
        """Whether no part of this box is outside of the other."""
        return (
            other.left <= self.left
            and other.top <= self.top
            and self.right <= other.right
            and self.bottom <= other.bottom
        )


class Label(NamedTuple):
    """A text that names the point (`x`, `y`)."""

    text: str
    x: float
    y: float


class Place(NamedTuple):
    """Position of a label: its box, the end of the text that is nearest to its point, and the distance."""

    box: Box
    anchor: Literal["start", "middle", "end"]
    distance: float


def placed(labels: Sequence[Label], canvas: Box, obstacles: Iterable[Box] = ()) -> list[Place | None]:
    """A place for each label, in order; None where no free place is near its point.

    No label overlaps another, a point, or an obstacle, and none leaves the canvas. Earlier labels choose
    first; of the free places each takes the nearest, on the right if it can.
    """
    taken = [*obstacles, *(Box(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for _, x, y in labels)]
    found: list[Place | None] = []
    for label in labels:
        free = (
            place
            for place in _candidates(label)
            if place.box.within(canvas) and not any(place.box.overlaps(other) for other in taken)
        )
        place = next(free, None)
        found.append(place)
        if place is not None:
            taken.append(place.box)
    return found


def _candidates(label: Label) -> Iterator[Place]:
    width = text_width(label.text)
    anchors: dict[int, Literal["start", "middle", "end"]] = {1: "start", 0: "middle", -1: "end"}
    for distance in _DISTANCES:
        for across, down in _DIRECTIONS:
            x, y = label.x + across * distance, label.y + down * distance
            left = x - width * (1 - across) / 2
            top = y - HEIGHT * (1 - down) / 2
            yield Place(Box(left, top, left + width, top + HEIGHT), anchors[across], distance)


def along(points: Sequence[tuple[float, float]]) -> list[Box]:
    """Small boxes that cover a line from point to point, as obstacles of its labels."""
    found = []
    for (x, y), (next_x, next_y) in pairwise(points):
        pieces = int(max(abs(next_x - x), abs(next_y - y)) / _LINE) + 1
        for piece in range(pieces):
            share = (piece + 0.5) / pieces
            at_x, at_y = x + share * (next_x - x), y + share * (next_y - y)
            found.append(Box(at_x - _LINE / 2, at_y - _LINE / 2, at_x + _LINE / 2, at_y + _LINE / 2))
    return found


def distinct(labels: Sequence[Label]) -> list[Label]:
    """The labels without those of equal text whose points cover each other."""
    found: list[Label] = []
    for label in labels:
        if not any(
            label.text == each.text and max(abs(label.x - each.x), abs(label.y - each.y)) < _ONE_POINT
            for each in found
        ):
            found.append(label)
    return found


def point_labels(plot: Plot, labels: Sequence[Label], obstacles: Iterable[Box] = ()) -> str:
    """The texts of the labels that have a place within the axes of the plot, with lines to far points."""
    canvas = Box(plot.left + 2, plot.top, plot.width, plot.bottom - 2)
    parts = []
    for label, place in zip(labels, placed(labels, canvas, obstacles), strict=True):
        if place is None:
            continue
        box, anchor, distance = place
        x = {"start": box.left, "middle": (box.left + box.right) / 2, "end": box.right}[anchor]
        if distance > _LEADER:
            y = min(max(label.y, box.top), box.bottom)
            parts.append(element("line", x1=label.x, y1=label.y, x2=x, y2=y, class_="leader"))
        kind = {"start": "value", "middle": "value mid", "end": "value end"}[anchor]
        parts.append(text(label.text, x, box.top + _ASCENT, class_=kind))
    return element("g", *parts) if parts else ""


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float] | None:
    """Positions at least `gap` apart within [`low`, `high`], near the wanted ones and in their order.

    None where the range has no room for all.
    """
    if len(wanted) > 1 and gap * (len(wanted) - 1) > high - low:
        return None
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    found: dict[int, float] = {}
    at = low - gap
    for index in order:
        at = found[index] = max(wanted[index], at + gap)
    at = high + gap
    for index in reversed(order):
        at = found[index] = min(found[index], at - gap)
    return [found[index] for index in range(len(wanted))]
