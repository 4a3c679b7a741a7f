"""Waiting to the moment, without keeping the processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SPIN_S = 100e-6
"""The last stretch before a deadline is spun: a sleep may come back this much late, and the threads of
this process have to do without it for no longer."""


def wait_until(
    deadline: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return at `deadline`, a time of `now`; at once if that has passed."""
    left = deadline - now()
    if left > SPIN_S:
        sleep(left - SPIN_S)
    while now() < deadline:
        pass


class Pace:
    """The deadlines of one pass, each so long after the one before, however late that was reached.

    So what comes between two layers (hooks, copies into buckets, a processor that had to be waited for)
    does not add up: it is on the host, and the emulated device computes on. Where it cannot, it is
    `stopped`. What is late at the end of a pass is kept in `late_s`: that is the error of the emulation.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._deadline = 0.0
        self.late_s = 0.0
        """Sum over passes."""
        self.anew = False
        """Whether work begins when it is asked for, because something unseen may have kept it until then."""

    def start(self) -> None:
        """A pass begins now."""
        self._deadline = self._now()

    def advance(self, seconds: float) -> None:
        """Wait for the end of work that begins where the last one was due to end."""
        if self.anew:
            self.start()
        self._deadline += seconds
        wait_until(self._deadline, self._now, self._sleep)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Within, no work is done: what comes is due so much later."""
        began = self._now()
        try:
            yield
        finally:
            self._deadline += self._now() - began

    def end(self) -> None:
        """The pass ends now."""
        self.late_s += max(0.0, self._now() - self._deadline)
