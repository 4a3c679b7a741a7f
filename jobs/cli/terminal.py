"""Properties of an output stream: whether it can be redrawn, and whether its text may have colours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Colour = Literal["red", "green", "yellow", "cyan"]

_CODES: dict[Colour, int] = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
_RESET = "\x1b[0m"
PAINTED = frozenset({_RESET, *(f"\x1b[{code}m" for code in _CODES.values())})
"""The control sequences of `paint`."""


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that interprets control sequences."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def has_colour(stream: TextIO) -> bool:
    """Whether text on the stream may have colours.

    A terminal has colours. `FORCE_COLOR` with any value except the empty one adds colours to files and pipes
    (https://force-color.org), `NO_COLOR` turns colours off (https://no-color.org). With both, as in Python,
    there are no colours.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or can_redraw(stream)


def console(stream: TextIO) -> Console:
    """A console of rich on the stream, with colours as by `has_colour`, for `printable` text."""
    from rich.console import Console

    file = getattr(stream, "unfiltered", stream)
    return Console(
        file=file,
        force_terminal=can_redraw(stream),
        no_color=not has_colour(stream),
        highlight=False,
    )


def paint(text: str, colour: Colour | None) -> str:
    """The text in a colour of ECMA-48 (SGR); unchanged for None."""
    return text if colour is None else f"\x1b[{_CODES[colour]}m{text}{_RESET}"
