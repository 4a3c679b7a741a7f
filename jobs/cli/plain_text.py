"""Text for a terminal without the control characters of records, logs and names of files.

A terminal obeys them: a message that another user or a broken program wrote could clear the screen, rename
the window or reorder the line. Standard library only.
"""

from __future__ import annotations

import re
from typing import Any, TextIO, cast

from jobs.cli.terminal import PAINTED, has_colour

_CONTROL = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # a whole control sequence of ECMA-48, such as a colour
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # C0 except tab, newline and carriage return; DEL; C1
    "|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # changes of the direction of writing
    "|[\ud800-\udfff]"  # surrogates, which no encoding has
)


def printable(text: str) -> str:
    """The text without control characters except tab, newline and carriage return."""
    return _CONTROL.sub("", text)


class PlainStream:
    """A text stream that writes `printable` text, and the colours of `jobs.cli.terminal` where it may have
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
