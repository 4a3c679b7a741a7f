"""A clock of the trainer that stands still in the turns of the other loops of a benchmark.

Log lines, summaries and stop agreements are due by time. With the clock of the machine, the trainer would do
each of them in its own turns as often as the loops take together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from disttrain.engine import agreement
from disttrain.telemetry import live_progress, recorder


class OwnTime:
    """Replaces the module `time`: `monotonic` leaves `others_s` out, the seconds of the other loops."""

    def __init__(self) -> None:
        self.others_s = 0.0

    def time(self) -> float:
        return time.time()

    def thread_time(self) -> float:
        return time.thread_time()

    def monotonic(self) -> float:
        return time.monotonic() - self.others_s


@contextmanager
def own_time() -> Iterator[OwnTime]:
    """Have the trainer read an `OwnTime` within the block."""
    clock = OwnTime()
    with ExitStack() as stack:
        for module in (recorder, live_progress, agreement):
            stack.enter_context(patch.object(module, "time", clock))
        yield clock
