"""Output streams: whether they can be redrawn or have colours, and text without control characters.

A terminal obeys the control characters of records, logs and names of files: a message that another user or a
broken program wrote could clear the screen, rename the window or reorder the line. Standard library only.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

Colour = Literal["red", "green", "yellow", "cyan"]

_CODES: dict[Colour, int] = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
_RESET = "\x1b[0m"
PAINTED = frozenset({_RESET, *(f"\x1b[{code}m" for code in _CODES.values())})
"""The control sequences of `paint`."""
_CONTROL = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # a whole control sequence of ECMA-48, such as a colour
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # C0 except tab, newline and carriage return; DEL; C1
    "|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # changes of the direction of writing
    "|[\ud800-\udfff]"  # surrogates, which no encoding has
)


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


def printable(text: str) -> str:
    """The text without control characters except tab, newline and carriage return."""
    return text if text.isprintable() else _CONTROL.sub("", text)


class PlainStream:
    """A text stream that writes `printable` text, and the colours of `paint` where it may have
    them."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream
        """For a program that draws with control characters, and makes the text that it shows `printable`."""
        self._passing = PAINTED if has_colour(stream) else frozenset[str]()

    def write(self, text: str) -> int:
        """Write the text; its length."""
        self.unfiltered.write(_CONTROL.sub(lambda found: found[0] if found[0] in self._passing else "", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def plain_stream(stream: TextIO) -> TextIO:
    """A `PlainStream` on the stream."""
    return cast(TextIO, PlainStream(stream))
