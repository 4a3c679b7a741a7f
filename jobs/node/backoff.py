"""Delays between polls of the shared file system. Standard library only."""

from __future__ import annotations

import random
from collections.abc import Iterator

_GROWTH = 1.4
_JITTER = 0.25
LONGEST_JITTER = 1 + _JITTER
"""Longest delay by `jittered`, as a multiple of the delay that is given."""


def jittered(seconds: float) -> float:
    """A delay up to a quarter shorter or longer, so that the nodes of a job do not poll at once."""
    return seconds * random.uniform(1 - _JITTER, LONGEST_JITTER)


def growing_delays(first_s: float, longest_s: float) -> Iterator[float]:
    """Delays that begin short, for what happens at once, and grow to `longest_s`."""
    delay_s = first_s
    while True:
        yield jittered(delay_s)
        delay_s = min(longest_s, _GROWTH * delay_s)
