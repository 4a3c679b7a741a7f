"""Deadlines of the emulated layers of one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from disttrain.runtime.waiting import wait_until


class DeadlineTimer:
    """The deadlines of one pass: each follows the previous deadline, not the time at which that was reached.

    So host work between two layers (hooks, copies into buckets, waiting for a processor) does not accumulate,
    as on a device that computes asynchronously. While the device cannot compute, the timer is `paused`.
    `timing_error_s` sums how late passes ended.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._deadline = 0.0
        self.timing_error_s = 0.0
        """Seconds by which passes ended late, summed over passes."""
        self.restarts = False
        """Whether each layer starts when the host reaches it, because unseen communication may have delayed
        it."""

    def start(self) -> None:
        """Start a pass now."""
        self._deadline = self._now()

    def advance(self, seconds: float) -> None:
        """Wait for the end of work that starts at the previous deadline and takes `seconds`."""
        if self.restarts:
            self.start()
        self._deadline += seconds
        wait_until(self._deadline, self._now, self._sleep)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Postpone the deadlines by the time spent within."""
        began = self._now()
        try:
            yield
        finally:
            self._deadline += self._now() - began

    def end(self) -> None:
        """End the pass now."""
        self.timing_error_s += max(0.0, self._now() - self._deadline)
