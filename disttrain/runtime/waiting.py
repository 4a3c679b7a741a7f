"""Wait for a deadline to within microseconds, without using the processor. Imports without torch."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN_S = 100e-6
"""Seconds before a deadline that are spun: a sleep may return this much late."""


def wait_until(
    deadline: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return at `deadline`, a time of `now` in seconds; at once if that has passed."""
    left = deadline - now()
    if left > SPIN_S:
        sleep(left - SPIN_S)
    while now() < deadline:
        pass
